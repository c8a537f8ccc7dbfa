"""Files that are written whole or not at all, and paths as a user writes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.errors import WorkbenchError


def user_path(path: str | os.PathLike[str]) -> Path:
    """``path`` with a leading ``~`` read as the home folder (a shell does so only at the start of a word)."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # nobody of that name has a home: then it is a plain name
        return Path(path)


def output_file(path: str | os.PathLike[str]) -> Path:
    """``path`` as a file that may be written, its folder made. Raises ``WorkbenchError`` for a folder and an empty name."""
    target = user_path(path)
    if not os.fspath(path) or target.is_dir():
        raise WorkbenchError(
            f"{os.fspath(path)!r} is {'a folder' if os.fspath(path) else 'no name'}",
            expected="the name of the file to write",
            next_step=f"write {target / 'result'}, for example" if os.fspath(path) else "",
        )
    return output_folder(target.parent) / target.name


def output_folder(path: str | os.PathLike[str]) -> Path:
    """``path`` as a folder that may be written into, made where it is missing. Raises ``WorkbenchError`` where it cannot be."""
    if not os.fspath(path):
        raise WorkbenchError("'' is no name", expected="the name of the folder to write into")
    folder = user_path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refused = "" if os.access(folder, os.W_OK | os.X_OK) else "no permission"
    except OSError as error:
        refused = "a file of that name is in the way" if isinstance(error, FileExistsError) else (error.strerror or str(error))
    if refused:
        raise WorkbenchError(
            f"Nothing can be written into the folder {folder} ({refused})",
            expected="a folder that exists or can be made",
            next_step="name another one",
        )
    return folder


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The name to write under; it takes the place of ``path`` at the end of the block, and nothing is left after an error."""
    target = output_file(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
