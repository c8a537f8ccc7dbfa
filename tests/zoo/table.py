"""Run discovery on an entry, and put the rows in a table."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import WorkbenchError
from workbench.symmetry import Symmetry, discovery
from zoo.entry import Entry

COLUMNS = (
    "architecture",
    "kind",
    "exported",
    "groups",
    "coverage",
    "log10 order",
    "error",
    "export s",
    "analysis s",
    "proof s",
    "unknown operations",
)


@dataclass(frozen=True)
class Row:
    """What discovery made of one entry; ``failure``: why the model was not built or not exported."""

    entry: Entry
    symmetry: Symmetry | None = None
    failure: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def defects(self) -> list[str]:
        return [note for note in self.symmetry.notes if note.startswith("defect")] if self.symmetry else []

    @property
    def error(self) -> float:
        """The largest relative change of the output over three random elements, in float64 on random weights."""
        return self.symmetry.proof.max_relative_error if self.symmetry and self.symmetry.proof else math.nan

    def cells(self) -> list[str]:
        entry, found = self.entry, self.symmetry
        if found is None:
            return [entry.name, entry.family, f"no: {self.failure}", *[""] * 8]
        spent = [f"{self.seconds[part]:.2f}" for part in ("capture", "analysis", "prove")]
        unknown = ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in found.unknown_ops.items())
        return [
            entry.name,
            entry.family,
            "yes" + " (WRONG)" * bool(self.defects),
            str(len(found.groups)),
            f"{found.coverage:.3f}",
            f"{found.log10_order():.3f}",
            f"{self.error:.0e}",
            *spent,
            unknown,
        ]


@contextmanager
def _timed(module: Any, names: Sequence[str], seconds: dict[str, float]) -> Iterator[None]:
    """Adds up the time spent in functions of ``module``."""
    originals = {name: getattr(module, name) for name in names}

    def wrap(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return originals[name](*args, **kwargs)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start

        return call

    for name in names:
        setattr(module, name, wrap(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(module, name, original)


def run(entry: Entry) -> Row:
    """Build, discover and prove. What the library or the exporter refuses is kept as its reason."""
    try:
        model, inputs = entry.make()
    except Exception as error:
        return Row(entry, failure=f"not built: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    try:
        with _timed(discovery, ("capture", "prove"), seconds):
            symmetry = discovery.discover_symmetry(model, inputs, outputs=entry.outputs)
    except WorkbenchError as error:
        return Row(entry, failure=str(error).splitlines()[0], seconds=seconds)
    except Exception as error:
        return Row(entry, failure=f"CRASHED: {type(error).__name__}: {str(error).splitlines()[0]}", seconds=seconds)
    seconds["analysis"] = time.perf_counter() - start - sum(seconds.values())
    return Row(entry, symmetry, seconds=seconds)


def text(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    cells = [row.cells() for row in rows]
    widths = [max(len(line[i]) for line in (COLUMNS, *cells)) for i in range(len(COLUMNS))]
    widths[2] = min(widths[2], 12)
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in (COLUMNS, *cells)
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def summary(rows: Sequence[Row]) -> str:
    exported = [row for row in rows if row.symmetry is not None]
    wrong = [row.entry.name for row in exported if row.defects or not row.error < 1e-9]
    unknown = [row.entry.name for row in exported if row.symmetry.unknown_ops]
    worst = max((row.error for row in exported), default=math.nan)
    return (
        f"{len(rows)} architectures: {len(exported)} exported, "
        f"{len(wrong)} with a wrong claim{': ' if wrong else ''}{', '.join(wrong)}, "
        f"{len(unknown)} with an operation without a rule; largest error {worst:.0e}; "
        f"{sum(sum(row.seconds.values()) for row in rows):.0f} s"
    )
