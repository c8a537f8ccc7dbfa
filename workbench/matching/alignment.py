"""What ``align`` returns: the element, the aligned weights, and the evidence that both are what they claim to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from workbench.matching.matcher import MatchStep
from workbench.symmetry.element import Element


@dataclass(frozen=True)
class Preservation:
    """Whether the aligned model computes what the moving one did, on real inputs.

    max_abs_change: largest |f(moving, x) − f(aligned, x)|; scale: largest |f(moving, x)|; tolerance: what was allowed, relative to
    the scale; examples: how many inputs; dtype: the arithmetic used (float64 where the device has it, so that rounding does
    not hide a broken symmetry).
    """

    max_abs_change: float
    scale: float
    tolerance: float
    examples: int
    dtype: str

    @property
    def passed(self) -> bool:
        return self.max_abs_change <= self.tolerance * max(self.scale, 1e-30)


@dataclass(frozen=True)
class Alignment:
    """One model brought close to another by an element of their symmetry group.

    element, aligned: π and π(moving), on the moving model's device and in its dtype
    objective: Σ ⟨anchor, aligned⟩ over the tensors that count; criterion: what the matcher itself looked at -> the value reached
    starts: what each of several starts reached, in the order they were run (empty where there was one)
    distance_before, distance_after: ‖anchor − moving‖ and ‖anchor − aligned‖ over all float parameters (no running statistics)
    history: what each visit of a factor gained; sweeps, converged (a local optimum, never called optimal), cancelled
    units_moved: factor -> units not where they were
    preservation: the check on data, or None where no model and inputs were given
    dead_units: factor -> {"anchor": [...], "moving": [...]}, units whose weights are all zero: nothing tells them apart
    settings: matcher, its fields, device, versions; notes: what the reader should know; data_used: "no data used" or which
    """

    element: Element
    aligned: dict[str, Tensor]
    objective: float
    distance_before: float
    distance_after: float
    seconds: float
    seed: int
    settings: Mapping[str, Any]
    history: tuple[MatchStep, ...]
    sweeps: int
    converged: bool
    cancelled: bool
    units_moved: Mapping[str, int]
    preservation: Preservation | None
    dead_units: Mapping[str, Mapping[str, list[int]]]
    notes: tuple[str, ...]
    data_used: str
    criterion: Mapping[str, float] = field(default_factory=dict)
    starts: tuple[float, ...] = ()

    @property
    def l2_cut(self) -> float:
        """By how much the distance fell, 1 − after/before, in [0, 1] (0 for identical models)."""
        return 1 - self.distance_after / self.distance_before if self.distance_before else 0.0

    def summary(self) -> dict[str, Any]:
        """The evidence as plain numbers and texts that JSON can hold (no weights, no permutation)."""
        kept = self.preservation
        return {
            "objective": self.objective,
            "criterion": dict(self.criterion),
            "starts": list(self.starts),
            "distance_before": self.distance_before,
            "distance_after": self.distance_after,
            "l2_cut": self.l2_cut,
            "seconds": self.seconds,
            "seed": self.seed,
            "sweeps": self.sweeps,
            "converged": self.converged,
            "cancelled": self.cancelled,
            "units_moved": dict(self.units_moved),
            "dead_units": {name: dict(found) for name, found in self.dead_units.items()},
            "function_kept": None
            if kept is None
            else {
                "max_abs_change": kept.max_abs_change,
                "scale": kept.scale,
                "tolerance": kept.tolerance,
                "examples": kept.examples,
                "dtype": kept.dtype,
                "passed": kept.passed,
            },
            "notes": list(self.notes),
            "data_used": self.data_used,
            "settings": dict(self.settings),
        }
