"""``align``: bring one model close to another by an element of their symmetry group, and return the evidence."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from workbench.devices import resolve_device
from workbench.errors import WorkbenchError
from workbench.matching.alignment import Alignment
from workbench.matching.matcher import Match, Matcher, matcher_settings, resolve_matcher
from workbench.matching.preservation import check_preservation
from workbench.matching.problem import MatchingProblem, cost_tensors, front, require_shared
from workbench.progress import Progress
from workbench.schema import versions
from workbench.states import StateDict, distance, require_finite, require_same_tensors
from workbench.symmetry.group import Symmetry

# A unit counts as dead when its weights' norm is below this share of the median unit's: weight decay drives it to 1e-20 and
# less, while the weakest live unit stays far above.
DEAD = 1e-8


def align(
    symmetry: Symmetry,
    anchor: StateDict,
    moving: StateDict,
    matcher: str | Matcher = "weights",
    *,
    seed: int = 0,
    device: str | torch.device = "auto",
    model: nn.Module | None = None,
    inputs: Any = None,
    progress: Progress | None = None,
) -> Alignment:
    """π = argmax_π Σ_k ⟨anchor_k, π(moving)_k⟩, found by ``matcher`` (a local optimum, see its docstring).

    symmetry: the group π is taken from; anchor, moving: two state dicts of its model, neither is changed
    matcher: a registered name or a matcher object; seed: feeds the matcher's own generator, never the global one
    device: where cost matrices are computed, "auto" is CUDA where there is one
    model, inputs: given both, π(moving) is run beside moving on the inputs (eval mode, a copy of the model) and the largest
    change of the outputs is recorded; model is never changed
    progress: called after every visit of a factor; raising ``Cancelled`` in it gives the best element so far

    Raises ``WorkbenchError`` for states that do not fit the symmetry or each other, for non-finite weights (tensor and count),
    and where model and inputs are given one without the other.
    """
    started = time.perf_counter()
    chosen = resolve_matcher(matcher)
    if (model is None) != (inputs is None):
        raise WorkbenchError(
            f"{'inputs' if model is None else 'model'} was given without {'model' if model is None else 'inputs'}",
            expected="both, for the function-preservation check, or neither",
        )
    if not isinstance(symmetry, Symmetry):
        raise WorkbenchError(
            f"The symmetry is a {type(symmetry).__name__}",
            expected="a Symmetry",
            next_step="discover_symmetry(model, inputs) finds it",
        )
    require_same_tensors(anchor, moving, names=("anchor", "moving"))
    symmetry.require_fits(anchor)
    require_shared(symmetry)
    require_finite(anchor, "anchor")
    require_finite(moving, "moving")

    where = resolve_device(device)
    problem = MatchingProblem(symmetry, anchor, moving, names=_parameters(symmetry, model), device=where)
    found = chosen.match(problem, seed=seed, progress=progress)
    aligned = symmetry.apply(found.element, moving)
    before, after = (distance(anchor, other, problem.names) for other in (moving, aligned))
    return Alignment(
        element=found.element,
        aligned=aligned,
        objective=found.objective,
        distance_before=before,
        distance_after=after,
        seconds=time.perf_counter() - started,
        seed=seed,
        settings={**matcher_settings(chosen), "device": str(where), "versions": versions()},
        history=found.history,
        sweeps=found.sweeps,
        converged=found.converged,
        cancelled=found.cancelled,
        units_moved=found.element.units_moved(),
        preservation=None if model is None else check_preservation(model, moving, aligned, inputs),
        dead_units=_dead_units(problem),
        notes=_notes(found, before),
        data_used=found.data_used,
    )


def _parameters(symmetry: Symmetry, model: nn.Module | None) -> tuple[str, ...]:
    """The tensors that count. With a model at hand its buffers are known exactly; without one they are known by name."""
    names = cost_tensors(symmetry)
    if model is None:
        return names
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return tuple(name for name in names if name not in buffers)


def _notes(found: Match, before: float) -> tuple[str, ...]:
    notes = list(found.notes)
    if found.element.is_identity and found.converged and not found.cancelled:
        notes.append(
            "already aligned" + (": the two models are identical" if before == 0 else ": no move of one factor brings them closer")
        )
    if found.cancelled:
        notes.append("cancelled: this is the best element found until then")
    elif not found.converged and found.sweeps:
        notes.append(f"stopped after {found.sweeps} sweeps with moves left")
    return tuple(notes)


def _dead_units(problem: MatchingProblem) -> dict[str, dict[str, list[int]]]:
    """Factor -> the units whose entries vanish in every tensor that counts, per model. Factors without one are left out."""
    out: dict[str, dict[str, list[int]]] = {}
    for name, places in problem.occurrences.items():
        if not places:
            continue
        found = {}
        for side, which in enumerate(("anchor", "moving")):
            squares = [front(problem.blocks[index][side].view, [], axis).square().sum(1) for index, axis in places]
            norms = torch.stack(squares).sum(0).sqrt()
            found[which] = (norms <= DEAD * norms.median()).nonzero().flatten().tolist()
        if any(found.values()):
            out[name] = found
    return out
