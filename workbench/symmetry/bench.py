"""One model with random float64 weights and inputs, its output on the unmoved weights, and what an element does to it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from workbench.symmetry.element import Element
from workbench.symmetry.occurrences import Occurrence

if TYPE_CHECKING:
    from workbench.symmetry.group import Symmetry

_FLOOR = 1e-5  # share of a typical activation below which an output counts as structurally zero
_NUDGE = 1e-12  # relative change of the weights that shows how well the output is determined
_NOISE = 0.1  # share of the output's sensitivity to such a change that is taken for noise
_WORST = 1e7  # the floor is at most so many times the output: beyond it says that runs differ by themselves, and hides all


class Runner(Protocol):
    """A function of the weights: ``GraphInFloat64`` and ``ModuleInFloat64``."""

    def run(self, weights: Mapping[str, Tensor], peaks: list[float] | None = None) -> list[Tensor]: ...


class Bench:
    """What ``symmetry`` does to the outputs of ``runner`` on ``weights``.

    An output that is zero but for rounding (a sum of x − mean x) has no size of its own to compare a change with. The floor under
    it is a small share of a typical activation (the median over all results of their largest entries: a mask of −10³⁸ is none),
    and of what a change of the weights in the twelfth digit does to the output, which is large where large numbers cancel, within
    bounds: a model that does not give the same output twice is not proved by that.
    """

    def __init__(
        self,
        symmetry: Symmetry,
        runner: Runner,
        weights: dict[str, Tensor],
        generator: torch.Generator,
        step: Callable[[], Any],
    ) -> None:
        self.symmetry, self.weights, self._runner, self._step = symmetry, weights, runner, step
        peaks: list[float] = []
        self.reference = self._run(weights, peaks)
        typical = statistics.median(peaks) if peaks else 0.0
        # One number for each row; for each entry it would take as long to draw as a run takes.
        nudged = {
            name: weight * (1 + _NUDGE * torch.randn(_rows(weight), generator=generator, dtype=torch.float64))
            for name, weight in weights.items()
        }
        self.floors = [
            _FLOOR * typical + min(_NOISE * _largest_change(one, other) / _NUDGE, _WORST * max(_size(one), typical))
            if one.is_floating_point() or one.is_complex()
            else 0.0
            for one, other in zip(self.reference, self._run(nudged), strict=True)
        ]

    def _run(self, weights: Mapping[str, Tensor], peaks: list[float] | None = None) -> list[Tensor]:
        with torch.no_grad():
            values = self._runner.run(weights, peaks)
        self._step()
        return values

    def error(self, element: Element, left_behind: Occurrence | None = None) -> float:
        """Relative change of the output under ``element``; ``left_behind``: a leaf that does not move along."""
        moved = dict(self.weights)
        for piece in self.symmetry.pieces():
            if all(name in self.weights for name in piece.names):
                layouts = (left_behind.rest if left_behind is not None and left_behind.piece == piece else piece).layouts
                moved |= piece.scatter(element.apply_to_tensor(piece.gather(self.weights), layouts, piece.names[0]))
        return self.change(moved)

    def change(self, weights: Mapping[str, Tensor]) -> float:
        """Relative change of the output when these weights take the place of the model's; the others stay."""
        return self._difference(self._run({**self.weights, **weights}))

    def agrees(self, other: Runner, tolerance: float) -> bool:
        """Whether ``other`` gives the same outputs on the unmoved weights; it need not know of those the model keeps inside."""
        with torch.no_grad():
            values = other.run(self.weights)
        known = len(self.reference) - len(values)
        return known >= 0 and self._difference([*self.reference[:known], *values]) <= tolerance

    def _difference(self, outputs: list[Tensor]) -> float:
        worst = 0.0
        for before, after, floor in zip(self.reference, outputs, self.floors, strict=True):
            if before.shape != after.shape:
                change = math.inf
            elif not before.is_floating_point() and not before.is_complex():
                change = float(not torch.equal(before, after))
            elif before.numel() == 0:
                change = 0.0
            else:
                scale = _size(before) + floor
                change = _largest_change(before, after) / scale if scale else 0.0
            worst = max(worst, change) if math.isfinite(change) else math.inf
        return worst


def _rows(weight: Tensor) -> tuple[int, ...]:
    return (*weight.shape[:1], *(1,) * (weight.dim() - 1))


def _size(output: Tensor) -> float:
    """The largest entry, leaving out masks (infinite ones, and such as are a million times larger than most)."""
    entries = output.abs()[output.isfinite() & (output != 0)]
    if entries.numel() == 0:
        return 0.0
    return float(entries[entries <= 1e6 * entries.median()].max())


def _largest_change(before: Tensor, after: Tensor) -> float:
    """max |y − y'| where both are finite; infinite where one is and the other is not."""
    if before.numel() == 0 or not (before.is_floating_point() or before.is_complex()):
        return 0.0
    change = (before - after).abs().nan_to_num(nan=math.inf)
    return float(torch.where(before == after, 0.0, change).max())
