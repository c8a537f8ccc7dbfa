"""``align``: bring one model close to another by an element of their symmetry group, and return the evidence."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from workbench.devices import resolve_device
from workbench.errors import WorkbenchError
from workbench.matching.alignment import Alignment
from workbench.matching.data import MatchingData, require_data
from workbench.matching.matcher import Match, Matcher, matcher_needs, matcher_settings, resolve_matcher
from workbench.matching.preservation import check_preservation
from workbench.matching.problem import MatchingProblem, cost_tensors, front, require_shared
from workbench.progress import Progress
from workbench.schema import versions
from workbench.states import StateDict, distance, require_finite, require_same_tensors
from workbench.symmetry.element import Element
from workbench.symmetry.group import Symmetry
from workbench.tasks import Task, require_task

# A unit counts as dead when its weights' norm is below this share of the median unit's: weight decay drives it to 1e-20 and
# less, while the weakest live unit stays far above.
DEAD = 1e-8

# Examples on which the function is compared before and after.
CHECKED = 256


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
    task: Task | None = None,
    start: Alignment | Element | None = None,
    progress: Progress | None = None,
) -> Alignment:
    """π = argmax_π Σ_k ⟨anchor_k, π(moving)_k⟩, found by ``matcher`` (a local optimum, see its docstring).

    symmetry: the group π is taken from; anchor, moving: two state dicts of its model, neither is changed
    matcher: a registered name or a matcher object; seed: feeds the matcher's own generator, never the global one
    device: where cost matrices are computed, "auto" is CUDA where there is one
    model, inputs: given both, π(moving) is run beside moving on the first 256 inputs (eval mode, a copy of the model) and the
    largest change of the outputs is recorded; model is never changed. They are also what matchers by activations look at
    task: examples with targets, for matchers that use a loss; its split "train" (or its first) stands for ``inputs`` where none
    are given
    start: go on from this alignment or element in place of the matcher's own start
    progress: called after every visit of a factor; raising ``Cancelled`` in it gives the best element so far

    Raises ``WorkbenchError`` for states that do not fit the symmetry or each other, for non-finite weights (tensor and count),
    where model and inputs are given one without the other, and where the matcher needs data that were not given.
    """
    started = time.perf_counter()
    chosen = resolve_matcher(matcher)
    data = data_given(chosen, model, inputs, task)
    require_matchable(symmetry, {"anchor": anchor, "moving": moving})
    where = resolve_device(device)
    first = _first_element(symmetry, start)
    names = parameters(symmetry, model)
    problem = MatchingProblem(symmetry, anchor, moving, names=names, device=where, start=first, data=data)
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
        preservation=None if data is None else check_preservation(data.model, moving, aligned, checked_inputs(data, inputs)),
        dead_units=_dead_units(problem),
        notes=_notes(found, before),
        data_used=found.data_used,
        criterion=found.criterion,
        starts=found.starts,
    )


def _first_element(symmetry: Symmetry, start: Alignment | Element | None) -> Element | None:
    element = start.element if isinstance(start, Alignment) else start
    if element is None:
        return None
    sizes = {name: (*group.over_sizes, group.size) for name, group in symmetry.groups.items()}
    if not isinstance(element, Element) or {n: tuple(p.shape) for n, p in element.permutations.items()} != sizes:
        raise WorkbenchError(
            "The start does not belong to this symmetry",
            expected=f"an Alignment or an Element with the factors {', '.join(sizes)}",
            cause="it was found for another model",
        )
    return element


def require_matchable(symmetry: Symmetry, states: Mapping[str, StateDict]) -> None:
    """Raise unless there is something to match, and all states (by the words for them) fit the symmetry and are finite."""
    if not isinstance(symmetry, Symmetry):
        raise WorkbenchError(
            f"The symmetry is a {type(symmetry).__name__}",
            expected="a Symmetry",
            next_step="discover_symmetry(model, inputs) finds it",
        )
    (first_word, first), *others = states.items()
    for word, state in others:
        require_same_tensors(first, state, names=(first_word, word))
    symmetry.require_fits(first)
    require_shared(symmetry)
    for word, state in states.items():
        require_finite(state, word)


def data_given(chosen: Any, model: nn.Module | None, inputs: Any, task: Task | None) -> MatchingData | None:
    """The data that a matcher may look at, or None; raises where it needs more than was given, and for a half of a pair."""
    if (model is None) != (inputs is None and task is None):
        given = "model" if model is not None else "inputs" if task is None else "task"
        raise WorkbenchError(
            f"{given} was given without {'model' if model is None else 'inputs'}",
            expected="both, for the function-preservation check, or neither",
        )
    data = None
    if task is not None:
        require_task(task)
        data = MatchingData.of_task(model, task)  # type: ignore[arg-type]
    elif model is not None:
        given = inputs if isinstance(inputs, dict) else (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        data = MatchingData(model, given)
    if data is not None:
        data.require_runs()
    needs = matcher_needs(chosen)
    if needs != "nothing":
        require_data(data, f"The matcher {getattr(chosen, 'matcher_name', '')!r}", labels=needs == "labels")
    return data


def checked_inputs(data: MatchingData, inputs: Any) -> Any:
    """The inputs on which the function is compared: the first of those given, or of the task."""
    few = data.size <= CHECKED
    return inputs if inputs is not None and few else next(data.batches(CHECKED))


def parameters(symmetry: Symmetry, model: nn.Module | None) -> tuple[str, ...]:
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
        notes.append(f"stopped after {found.sweeps} sweeps or steps, before the search came to rest")
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
