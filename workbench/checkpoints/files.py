"""Reading weights from a file or folder, recognised by content and not by extension."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from workbench.checkpoints import pickles
from workbench.checkpoints.checkpoint import Checkpoint
from workbench.checkpoints.structure import choose, plain_tensors, require_weights, unwrap
from workbench.disk import user_path
from workbench.errors import WorkbenchError

HEAD = 1024
LARGEST_HEADER = 100_000_000  # the safetensors format's own limit
FOREIGN = (
    (b"GGUF", "a GGUF file: quantised weights for llama.cpp", "use the unquantised .safetensors files of the model"),
    (b"\x89HDF\r\n", "an HDF5 file (Keras)", "convert it to .safetensors"),
    (b"\x1f\x8b", "a gzip file", "unpack it first"),
    (b"\x08\x00\x00\x00TFL3", "a TensorFlow Lite file", "convert it to .safetensors"),
)


def load_checkpoint(path: str | os.PathLike[str], *, key: str | None = None) -> Checkpoint:
    """The weights in ``path``: a .safetensors or torch file under any name, or a folder with one file or with shards.

    key: which set of weights, where a file holds several ("ema", "netG", …); nested ones as "model/ema".

    No code in the file is run, and everything lies on the CPU. ``notes`` of the result say what was left out or renamed. Raises
    ``WorkbenchError`` for damaged files, pointers and pages in place of weights, adapters, quantised weights, whole pickled
    models, and where several sets of weights fit and no ``key`` is given.
    """
    target = user_path(path)
    if not target.exists():
        siblings = sorted(p.name for p in target.parent.glob("*")) if target.parent.is_dir() else []
        raise WorkbenchError(
            f"There is no file or folder {target}",
            expected=f"one of {', '.join(siblings[:6])}{' …' if len(siblings) > 6 else ''}" if siblings else "",
        )
    content, metadata, notes = _read_folder(target) if target.is_dir() else _read_file(target)
    if "ties" in metadata:
        content = _tied_again(dict(content), metadata["ties"], target)
    chosen, where = choose(content, key, str(target))
    tensors, left_out = plain_tensors(chosen)
    require_weights(tensors, str(target))
    state, renamed = unwrap(tensors)
    if key is not None:
        metadata = {**metadata, "key": key}
    shown = {name: value for name, value in metadata.items() if name not in ("ties", "format")}
    return Checkpoint(state, str(target), (*notes, *where, *left_out, *renamed), shown)


Read = tuple[Any, dict[str, str], tuple[str, ...]]


def _read_file(path: Path) -> Read:
    """(content, metadata, notes) of one file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEAD)
    if not head:
        raise WorkbenchError(f"{path} is empty", cause="the download or the save stopped early", next_step="get it again")
    # First of all, since the length at the start of a safetensors file may look like the first bytes of another kind.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= LARGEST_HEADER:
        return _read_safetensors(path, size, int.from_bytes(head[:8], "little"))
    if head.startswith(b"version https://git-lfs"):
        wanted = re.search(rb"size (\d+)", head)
        raise WorkbenchError(
            f"{path} is a git-lfs pointer, a text of {size} bytes in place of the weights"
            + (f" (size {int(wanted[1]):,} expected)" if wanted else ""),
            cause="the repository was cloned without git-lfs",
            next_step="run `git lfs pull` there, or download the file itself",
        )
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise WorkbenchError(
            f"{path} is a web page",
            cause="the download gave a page (a login, an error) in place of the file",
            next_step="get it again",
        )
    for magic, what, then in FOREIGN:
        if head.startswith(magic):
            raise WorkbenchError(f"{path} is {what}", expected="a .safetensors or torch file", next_step=then)
    if head[257:262] == b"ustar":
        raise WorkbenchError(f"{path} is a tar archive", expected="a .safetensors or torch file", next_step="unpack it first")
    if head.startswith(b"PK"):
        content, notes = _undamaged(pickles.read_zip, path)
        return content, {}, notes
    if head[:1] == b"\x80":
        content, notes = _undamaged(pickles.read_legacy, path)
        return content, {}, notes
    if text.startswith(b"{") and path.name.endswith(".index.json"):
        return _read_shards(path)
    raise WorkbenchError(
        f"{path} is of no known kind (it begins {head[:8].hex(' ')})",
        expected="a .safetensors file, or one written by torch.save",
        cause="another kind of file, or a damaged one",
    )


def _undamaged(read: Callable[[Path], tuple[Any, tuple[str, ...]]], path: Path) -> tuple[Any, tuple[str, ...]]:
    """What ``read`` gives. Wrong bytes can make a reader of zips and pickles fail in any way: to a user all are one."""
    try:
        return read(path)
    except (WorkbenchError, MemoryError):
        raise
    except Exception as error:
        raise WorkbenchError(
            f"{path} is damaged ({type(error).__name__} while it was read)",
            expected="a whole file written by torch.save",
            cause="bytes changed or were lost on the way",
            next_step="get the file again",
        ) from error


def _read_safetensors(path: Path, size: int, header: int) -> Read:
    if 8 + header > size:
        raise _truncated(path, 8 + header, size)
    with path.open("rb") as file:
        file.seek(8)
        try:
            entries = json.loads(file.read(header))
            ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise WorkbenchError(f"{path} has a damaged safetensors header", next_step="get the file again") from error
    if ends and 8 + header + max(ends) > size:
        raise _truncated(path, 8 + header + max(ends), size)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = list(file.keys())
            content = {name: file.get_tensor(name) for name in names}
            return content, dict(file.metadata() or {}), ()
    except (SafetensorError, OSError) as error:
        raise WorkbenchError(f"{path} is a damaged safetensors file ({error})", next_step="get the file again") from error


def _truncated(path: Path, wanted: int, size: int) -> WorkbenchError:
    return WorkbenchError(
        f"{path} is truncated: {size:,} of {wanted:,} bytes",
        cause="the download or the save stopped early",
        next_step="get the file again",
    )


def _tied_again(content: dict[str, Any], ties: str, path: Path) -> dict[str, Any]:
    try:
        for alias, kept in json.loads(ties).items():
            content[alias] = content[kept]
    except (ValueError, KeyError, AttributeError) as error:
        raise WorkbenchError(f"{path} names tied tensors that it does not hold ({ties[:80]})") from error
    return content


def _read_folder(folder: Path) -> Read:
    indices = sorted(folder.glob("*.index.json"))
    if len(indices) == 1:
        return _read_shards(indices[0])
    if (folder / "adapter_config.json").is_file():
        raise WorkbenchError(
            f"{folder} holds an adapter (it has adapter_config.json)",
            expected="the weights of a whole model",
            next_step="merge the adapter into its base model and save that",
        )
    files = [p for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth") for p in sorted(folder.glob(pattern))]
    # Training scripts leave these beside the weights.
    files = [p for p in files if p.stem not in ("optimizer", "scheduler", "training_args", "rng_state")]
    preferred = [p for p in files if p.name in ("model.safetensors", "pytorch_model.bin")][:1]
    chosen = preferred or files
    if len(indices) > 1 or len(chosen) != 1:
        met = indices or files
        listed = ", ".join(p.name for p in met[:6]) or "no .safetensors, .bin, .pt or .pth file"
        listed += f" and {len(met) - 6} more" if len(met) > 6 else ""
        raise WorkbenchError(
            f"The folder {folder} holds {listed}",
            expected="one checkpoint, or shards with one *.index.json",
            next_step="give the path of one file" if files else "",
        )
    content, metadata, notes = _read_file(chosen[0])
    return content, metadata, (f"read {chosen[0].name}", *notes)


def _read_shards(index: Path) -> Read:
    try:
        wanted: Mapping[str, str] = json.loads(index.read_text())["weight_map"]
        shards = sorted(set(wanted.values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise WorkbenchError(f"{index} is not an index of shards", expected='{"weight_map": {name: file}}') from error
    outside = [shard for shard in shards if Path(shard).name != shard]
    if outside:
        raise WorkbenchError(f"{index} names files outside its folder ({outside[0]})", expected="plain file names")
    missing = [shard for shard in shards if not (index.parent / shard).is_file()]
    if missing:
        raise WorkbenchError(
            f"{len(missing)} of {len(shards)} shards are missing beside {index} ({', '.join(missing[:4])})",
            next_step="download all of them",
        )
    content: dict[str, Any] = {}
    notes: tuple[str, ...] = (f"read {len(shards)} shards by {index.name}",)
    metadata: dict[str, str] = {}
    for shard in shards:
        part, shard_metadata, shard_notes = _read_file(index.parent / shard)
        twice = set(part) & set(content)
        if twice:
            raise WorkbenchError(f"{sorted(twice)[0]!r} is in two shards of {index.parent}", expected="each tensor once")
        content.update(part)
        metadata.update(shard_metadata)
        notes += shard_notes
    absent = [name for name in wanted if name not in content]
    if absent:
        raise WorkbenchError(
            f"{len(absent)} tensors named in {index} are in no shard ({', '.join(absent[:4])})", cause="shards of different saves"
        )
    return content, metadata, notes
