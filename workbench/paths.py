"""Paths between models: callables t -> state dict.

    LinearPath:     θ(t) = (1 − t) A + t B
    PolygonalPath:  through K points, each leg an equal share of [0, 1]
    BezierPath:     θ(t) = Σ_k C(n, k) (1 − t)^(n−k) t^k θ_k      (Garipov et al., arXiv 1802.10026, for n = 2)

Ends (and the corners of a polygon) are bit-equal to what was given, in its dtype; where all points agree in an entry, so does
every θ(t). Tensors that are not floating point (``num_batches_tracked``, index buffers) cannot be mixed: they are copied from
the point with the largest weight, the earlier one on a tie (for a line: from A up to t = ½, else from B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.states import StateDict, clone, mix, require_same_tensors


@runtime_checkable
class Path(Protocol):
    """A curve in weight space; t runs over [0, 1]. Every call returns new tensors."""

    def __call__(self, t: float, /) -> dict[str, Tensor]: ...


def _require(points: Sequence[StateDict], least: int, kind: str) -> None:
    if len(points) < least:
        raise WorkbenchError(f"{kind} was given {len(points)} point(s)", expected=f"at least {least}")
    for index, point in enumerate(points[1:], start=1):
        require_same_tensors(points[0], point, names=("first point", f"point {index + 1}"))


@dataclass(frozen=True, eq=False)
class LinearPath:
    """(1 − t) a + t b; ``LinearPath(a, b)(0.0)`` is bit-equal to a and ``(1.0)`` to b."""

    a: StateDict
    b: StateDict

    def __post_init__(self) -> None:
        _require((self.a, self.b), 2, "LinearPath")

    def __call__(self, t: float, /) -> dict[str, Tensor]:
        return mix((self.a, self.b), (1 - t, t))


@dataclass(frozen=True, eq=False)
class PolygonalPath:
    """Straight legs through ``points``; point i is met at t = i / (len − 1), bit-exactly."""

    points: Sequence[StateDict]

    def __post_init__(self) -> None:
        _require(self.points, 2, "PolygonalPath")

    def __call__(self, t: float, /) -> dict[str, Tensor]:
        legs = len(self.points) - 1
        place = t * legs
        # t = i / legs may miss the corner by one rounding; a corner is meant.
        nearest = min(max(round(place), 0), legs)
        if math.isclose(place, nearest, rel_tol=0, abs_tol=1e-12 * legs):
            return clone(self.points[nearest])
        leg = min(max(math.floor(place), 0), legs - 1)
        return mix(self.points[leg : leg + 2], (1 - (place - leg), place - leg))


@dataclass(frozen=True, eq=False)
class BezierPath:
    """The Bézier curve of ``points``: it starts at the first and ends at the last, and bends towards the others."""

    points: Sequence[StateDict]

    def __post_init__(self) -> None:
        _require(self.points, 2, "BezierPath")

    def __call__(self, t: float, /) -> dict[str, Tensor]:
        n = len(self.points) - 1
        return mix(self.points, [math.comb(n, k) * (1 - t) ** (n - k) * t**k for k in range(n + 1)])
