"""When ``torch.export`` fails: keep its dump of the unfinished graph off the error stream, and name the user's own line."""

from __future__ import annotations

import io
import logging
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import torch

# They say at length what the exception says too.
LOGGERS = ("torch.export", "torch._export", "torch.fx.experimental.symbolic_shapes")
_NOT_THEIRS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
_STANDARD = sysconfig.get_paths()["stdlib"]


@contextmanager
def without_graph_dump() -> Iterator[None]:
    """What the model itself writes to the error stream passes through, at the end; the graph printed by export does not."""
    levels = {logger: logger.level for logger in map(logging.getLogger, LOGGERS)}
    said, dump = io.StringIO(), ""
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        with redirect_stderr(said):
            yield
    except Exception as error:
        dump = str(getattr(error, "partial_fx_graph", ""))
        raise
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        rest = said.getvalue().replace(f"{dump}\n", "") if dump else said.getvalue()
        if rest.strip():
            sys.stderr.write(rest)


def users_line(error: BaseException) -> str:
    """``model.py, line 8: if y.sum() > 0:``, the innermost line that is neither torch's nor ours; empty where there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _theirs(frame.filename)]
    if not frames:
        return ""
    last = frames[-1]
    return f"{Path(last.filename).name}, line {last.lineno}: {(last.line or '').strip()}"


def _theirs(file: str) -> bool:
    return not file.startswith(_NOT_THEIRS) and ("site-packages" in file or not file.startswith(_STANDARD))
