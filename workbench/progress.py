"""Progress and cancellation: one callback, silent by default.

Long computations call ``Reporter.step`` once per unit of work. The callback may raise ``Cancelled``; matchers then return the
best element found so far, everything else lets the exception pass and has written nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Step:
    """One report. ``done``/``total`` count units of ``stage``; ``total`` is None where the end is not known in advance.

    values: figures worth showing, e.g. ``{"objective": 12.3, "units changed": 5}``; seconds: since the stage began.
    """

    stage: str
    done: int
    total: int | None
    seconds: float
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def fraction(self) -> float | None:
        """Share done in [0, 1], or None where the total is unknown."""
        return None if not self.total else min(1.0, self.done / self.total)

    @property
    def seconds_left(self) -> float | None:
        """Linear estimate of the time left, or None before the first unit is done."""
        share = self.fraction
        return None if not share else self.seconds * (1 - share) / share


class Progress(Protocol):
    """What the caller passes in. It may raise ``workbench.errors.Cancelled`` to stop the work."""

    def __call__(self, step: Step, /) -> None: ...


class Reporter:
    """What a computation holds: ``Reporter(progress, "matching", total=12).step(objective=3.2)``. ``progress=None`` is silent."""

    def __init__(self, progress: Progress | None, stage: str, total: int | None = None) -> None:
        self._progress, self.stage, self.total = progress, stage, total
        self.done = 0
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def step(self, *, advance: int = 1, **values: float) -> None:
        """Count ``advance`` units as done and report."""
        self.done += advance
        if self._progress is not None:
            self._progress(Step(self.stage, self.done, self.total, self.seconds, values))
