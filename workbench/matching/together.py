"""``align_many``: bring several models into common coordinates by elements of their symmetry group, and return the evidence."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.devices import resolve_device
from workbench.errors import WorkbenchError
from workbench.matching.alignment import Preservation
from workbench.matching.many import ManyMatcher, ManyProblem, mean_of, resolve_many
from workbench.matching.matcher import Matcher, MatchStep, matcher_settings
from workbench.matching.pairwise import checked_inputs, data_given, parameters, require_matchable
from workbench.matching.preservation import check_preservation
from workbench.matching.problem import MatchingProblem
from workbench.progress import Progress
from workbench.schema import versions
from workbench.states import StateDict, distance
from workbench.symmetry.element import Element
from workbench.symmetry.group import Symmetry
from workbench.tasks import Task


@dataclass(frozen=True)
class MultiAlignment:
    """K models in common coordinates, those of the first.

    elements, aligned: π_p and π_p(W_p) for every model; the first element is the identity
    objective: Σ_(p < q) ⟨π_p(W_p), π_q(W_q)⟩ over the tensors that count
    distances_before, distances_after: (K, K), ‖W_p − W_q‖ and ‖π_p(W_p) − π_q(W_q)‖ over all float parameters
    preservations: the check on data of every model, or None where no model and inputs were given
    Other fields as in ``Alignment``.
    """

    elements: tuple[Element, ...]
    aligned: tuple[dict[str, Tensor], ...]
    objective: float
    distances_before: np.ndarray
    distances_after: np.ndarray
    seconds: float
    seed: int
    settings: Mapping[str, Any]
    history: tuple[MatchStep, ...]
    sweeps: int
    converged: bool
    cancelled: bool
    preservations: tuple[Preservation, ...] | None
    notes: tuple[str, ...]
    data_used: str
    criterion: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def merged(self) -> dict[str, Tensor]:
        """The mean of the aligned models (integer buffers are the first's; running statistics of BatchNorm want recomputing)."""
        return mean_of(self.aligned)

    def pair(self, anchor: int, moving: int) -> Element:
        """π_anchor⁻¹ π_moving: the element that brings one model close to another in that one's own coordinates."""
        return self.elements[anchor].inverse() @ self.elements[moving]

    @property
    def cycle_error(self) -> float:
        """See ``cycle_error``: 0 exactly, since every pair goes through the same coordinates."""
        count = range(len(self.elements))
        return cycle_error({(p, q): self.pair(p, q) for p in count for q in count if p != q})

    def summary(self) -> dict[str, Any]:
        """The evidence as plain numbers and texts that JSON can hold (no weights, no permutation)."""
        above = np.triu_indices(len(self.elements), 1)
        kept = self.preservations
        return {
            "models": len(self.elements),
            "objective": self.objective,
            "criterion": dict(self.criterion),
            "distances_before": self.distances_before.tolist(),
            "distances_after": self.distances_after.tolist(),
            "mean_distance_before": float(self.distances_before[above].mean()),
            "mean_distance_after": float(self.distances_after[above].mean()),
            "cycle_error": self.cycle_error,
            "units_moved": [element.units_moved() for element in self.elements],
            "function_kept": None if kept is None else all(one.passed for one in kept),
            "seconds": self.seconds,
            "seed": self.seed,
            "sweeps": self.sweeps,
            "converged": self.converged,
            "cancelled": self.cancelled,
            "notes": list(self.notes),
            "data_used": self.data_used,
            "settings": dict(self.settings),
        }


def align_many(
    symmetry: Symmetry,
    states: Sequence[StateDict],
    matcher: str | ManyMatcher | Matcher = "frank-wolfe",
    *,
    seed: int = 0,
    device: str | torch.device = "auto",
    model: nn.Module | None = None,
    inputs: Any = None,
    task: Task | None = None,
    progress: Progress | None = None,
) -> MultiAlignment:
    """π_1 … π_K = argmax Σ_(p < q) ⟨π_p(W_p), π_q(W_q)⟩, found by ``matcher`` (a local optimum, see its docstring).

    states: two or more state dicts of the symmetry's model, none is changed. matcher: "frank-wolfe", "merge-many", "all-to-one", an
    object of theirs, or a matcher for two models, by name or object, with which every model then goes to the first.
    Other parameters and errors as in ``align``.
    """
    started = time.perf_counter()
    chosen = resolve_many(matcher)
    states = list(states)
    if len(states) < 2:
        raise WorkbenchError(f"{len(states)} model(s) to align", expected="two or more state dicts")
    data = data_given(chosen, model, inputs, task)
    require_matchable(symmetry, {f"{_ordinal(p)}": state for p, state in enumerate(states)})
    where = resolve_device(device)
    names = parameters(symmetry, model)
    first = MatchingProblem(symmetry, states[0], states[0], names=names, device=where, data=data)
    problem = ManyProblem(first, states)
    found = chosen.match_many(problem, seed=seed, progress=progress)
    # Common coordinates are free up to one element for all: the first model stays where it is.
    home = found.elements[0].inverse()
    elements = tuple(home @ element if p else symmetry.identity() for p, element in enumerate(found.elements))
    aligned = tuple(symmetry.apply(element, state) for element, state in zip(elements, states, strict=True))
    notes = list(found.notes)
    if found.cancelled:
        notes.append("cancelled: these are the best elements found until then")
    return MultiAlignment(
        elements=elements,
        aligned=aligned,
        objective=found.objective,
        distances_before=_distances(states, names),
        distances_after=_distances(aligned, names),
        seconds=time.perf_counter() - started,
        seed=seed,
        settings={**matcher_settings(chosen), "device": str(where), "versions": versions()},
        history=found.history,
        sweeps=found.sweeps,
        converged=found.converged,
        cancelled=found.cancelled,
        preservations=None
        if data is None
        else tuple(
            check_preservation(data.model, state, moved, checked_inputs(data, inputs))
            for state, moved in zip(states, aligned, strict=True)
        ),
        notes=tuple(notes),
        data_used=found.data_used,
        criterion=found.criterion,
    )


def cycle_error(pairs: Mapping[tuple[int, int], Element]) -> float:
    """The share of units that are not back in place after p → q → r → p, over all factors and all such triples: 0 is consistent.

    pairs: (anchor, moving) -> the element found for that pair. Pairs matched by themselves are not consistent.
    """
    models = sorted({model for pair in pairs for model in pair})
    triples = [t for t in itertools.permutations(models, 3) if {(t[0], t[1]), (t[1], t[2]), (t[2], t[0])} <= pairs.keys()]
    astray = total = 0
    for p, q, r in triples:
        round_trip = pairs[p, q] @ pairs[q, r] @ pairs[r, p]
        astray += sum(round_trip.units_moved().values())
        total += sum(permutation.numel() for permutation in round_trip.permutations.values())
    return astray / total if total else 0.0


def _distances(states: Sequence[StateDict], names: Sequence[str]) -> np.ndarray:
    out = np.zeros((len(states), len(states)))
    for p, q in itertools.combinations(range(len(states)), 2):
        out[p, q] = out[q, p] = distance(states[p], states[q], names)
    return out


def _ordinal(number: int) -> str:
    words = ("first", "second", "third")
    return words[number] if number < len(words) else f"{number + 1}th"
