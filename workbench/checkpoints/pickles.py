"""Files written by ``torch.save``, old and new, without running what is in them.

A pickle can call any function. ``torch.load(weights_only=True)`` refuses everything but tensors; a few harmless kinds that people
leave beside the weights (NumPy scalars, ``argparse.Namespace``, paths) are replaced by inert stand-ins, so that the weights can
still be read. Anything else is refused by name.
"""

from __future__ import annotations

import pickle
import re
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from workbench.errors import WorkbenchError

HARMLESS = re.compile(
    r"numpy\.(_?core\.multiarray|_core\.multiarray)\.(scalar|_reconstruct)|numpy\.(dtype|ndarray)|numpy\.dtypes\.\w+"
    r"|argparse\.Namespace|types\.SimpleNamespace|pathlib\.(_local\.)?\w*Path|_codecs\.encode"
    r"|datetime\.(datetime|date|timedelta|timezone)|omegaconf\.[\w.]+|easydict\.EasyDict|collections\.\w+|typing\.\w+"
)
# The stand-ins are registered with torch for the time of one read; the lock keeps two reads from undoing each other's.
_lock = threading.RLock()


class _StandIn(dict):
    """Takes the place of an object that is not needed. It accepts whatever is done to it and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _StandIn:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        pass

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def read_zip(path: Path) -> tuple[Any, tuple[str, ...]]:
    """The object in a zip written by ``torch.save`` and notes. Raises for damage, TorchScript, and whatever would run code."""
    _require_whole_zip(path)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.endswith("constants.pkl") for name in names):
        raise WorkbenchError(
            f"{path} is a TorchScript archive: a program with its weights",
            expected="a state dict",
            cause="it was written by torch.jit.save",
            next_step="in code you trust, torch.save(torch.jit.load(path).state_dict(), new_path)",
        )
    if not any(name.endswith("data.pkl") for name in names):
        raise WorkbenchError(f"{path} is a zip archive of {', '.join(names[:4])}", expected="a file written by torch.save")
    with _lock:  # the list leaves out what another read has registered for itself
        unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        try:
            return _load(path, unsafe)
        except _Refused as refusal:
            raise _code_error(path, [refusal.name]) from None


def read_legacy(path: Path) -> tuple[Any, tuple[str, ...]]:
    """The object in a file of the kind ``torch.save`` wrote before version 1.6 (or a plain pickle, which is refused)."""
    # torch lists the classes only of the newer kind. Here each refusal names one, until none is left.
    unsafe: list[str] = []
    while True:
        try:
            return _load(path, unsafe)
        except _Refused as refusal:
            if refusal.name in unsafe or not HARMLESS.fullmatch(refusal.name):
                raise _code_error(path, [*unsafe, refusal.name]) from None
            unsafe.append(refusal.name)


class _Refused(Exception):
    def __init__(self, name: str) -> None:
        self.name = name


def _load(path: Path, unsafe: list[str]) -> tuple[Any, tuple[str, ...]]:
    if not all(HARMLESS.fullmatch(name) for name in unsafe):
        raise _code_error(path, [name for name in unsafe if not HARMLESS.fullmatch(name)])
    notes = (f"left out, not weights: {', '.join(sorted(unsafe))}",) if unsafe else ()
    stand_ins = [(type("StandIn", (_StandIn,), {}), name) for name in unsafe]
    try:
        # An open file and not its path: torch goes by the extension where it is given one.
        with _lock, torch.serialization.safe_globals(stand_ins), warnings.catch_warnings(), path.open("rb") as file:
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True), notes
    except pickle.UnpicklingError as error:
        # torch's own text recommends weights_only=False, which would run the code: it is not passed on.
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named:
            raise _Refused(named[1]) from None
        raise WorkbenchError(
            f"{path} is a pickle that cannot be read as weights",
            expected="a state dict written by torch.save",
            cause="the file is damaged, or was not written by torch.save",
        ) from None
    except Exception as error:  # bytes that are wrong may make the reader fail in any way
        raise WorkbenchError(
            f"{path} is a damaged torch file ({type(error).__name__})",
            cause="the download or the save stopped early",
            next_step="get the file again",
        ) from None


def _require_whole_zip(path: Path) -> None:
    again = "get the file again"
    if not zipfile.is_zipfile(path):
        raise WorkbenchError(
            f"{path} is truncated: it begins like a file of torch.save but its end is missing",
            cause="the download or the save stopped early",
            next_step=again,
        )
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.CRC:  # torch can be told to write no checksums; it then writes zeros
                    with archive.open(entry) as member:
                        while member.read(1 << 22):
                            pass
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise WorkbenchError(f"{path} is damaged: {error}", cause="bytes changed on the way", next_step=again) from error


def _code_error(path: Path, names: list[str]) -> WorkbenchError:
    listed = ", ".join(names[:6]) + (" …" if len(names) > 6 else "")
    if any(name.startswith(("torch.nn.modules", "__main__")) for name in names):
        return WorkbenchError(
            f"{path} holds a whole pickled model, not its weights (it needs {listed})",
            expected="a state dict",
            cause="it was written by torch.save(model), which only the code that made it can read",
            next_step="in that code, torch.save(model.state_dict(), new_path)",
        )
    return WorkbenchError(
        f"{path} asks to run {listed} while it is read, and was not read",
        expected="tensors and plain values",
        cause="objects of somebody's code were saved beside the weights, or the file is hostile",
        next_step="where you trust its origin, save only the state dict again in the code that made it",
    )
