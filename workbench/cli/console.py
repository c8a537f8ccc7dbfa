"""What a terminal sees: one table or one JSON object on the standard output, progress and errors on the error stream."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Any, TextIO

from workbench.errors import Cancelled
from workbench.progress import Progress, Step

_REDRAW_SECONDS = 0.1


def error(text: str) -> None:
    print(f"workbench: {text}", file=sys.stderr)


def note(text: str) -> None:
    """A remark that is no part of the answer, e.g. which files were written."""
    print(text, file=sys.stderr)


def answer(arguments: Any, data: Mapping[str, Any], text: str) -> None:
    """Print ``data`` as one JSON object under ``--json``, else ``text``."""
    out = _answers.get() or sys.stdout
    print(json.dumps(plain(data), indent=2, allow_nan=False) if arguments.json else text, file=out, flush=True)


_answers: ContextVar[TextIO | None] = ContextVar("answers", default=None)


@contextmanager
def answers_only() -> Iterator[None]:
    """Keep the standard output for ``answer``: what a user's own model prints goes to the error stream."""
    before = _answers.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _answers.reset(before)


def plain(value: Any) -> Any:
    """``value`` in types that strict JSON knows: arrays become lists, and a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return str(value)


def figure(value: Any) -> str:
    """A number at four significant digits; text as it is; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "undefined"
    return str(value)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned by spaces: the first to the left, columns of figures to the right."""
    cells = [[figure(item) for item in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in range(len(header))]
    right = [
        column > 0 and all(row[column] is None or isinstance(row[column], (int, float)) for row in rows)
        for column in range(len(header))
    ]

    def line(items: Sequence[str]) -> str:
        return "  ".join(
            item.rjust(width) if flush else item.ljust(width) for item, width, flush in zip(items, widths, right, strict=True)
        ).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *(line(row) for row in cells)])


class _Line:
    """One line on a terminal, redrawn in place at most ten times a second."""

    def __init__(self) -> None:
        self._drawn = 0.0

    def draw(self, step: Step) -> None:
        now = time.monotonic()
        if now - self._drawn < _REDRAW_SECONDS and step.done != step.total:
            return
        self._drawn = now
        count = f"{step.done}/{step.total}" if step.total else str(step.done)
        values = "  ".join(f"{name} {figure(float(value))}" for name, value in step.values.items())
        left = f"  {step.seconds_left:.0f} s left" if step.seconds_left else ""
        sys.stderr.write(f"\r\x1b[K{f'{step.stage} {count}{left}  {values}'[:120]}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress callback. It draws only where the error stream is a terminal.

    The first Ctrl-C stops the work at its next step, so that a matcher can return the best element so far; a second one stops
    at once.
    """
    line = _Line() if sys.stderr.isatty() else None
    stopping = threading.Event()

    def interrupt(number: int, frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    def report(step: Step) -> None:
        if line is not None:
            line.draw(step)
        if stopping.is_set():
            raise Cancelled

    # A process started in the background ignores Ctrl-C, and goes on ignoring it; only the main thread may set handlers.
    before = signal.getsignal(signal.SIGINT)
    listen = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if listen:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield report
    finally:
        if listen:
            signal.signal(signal.SIGINT, before)
        if line is not None:
            line.clear()
