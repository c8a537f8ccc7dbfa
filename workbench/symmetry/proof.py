"""Proof by test: random elements of the group must leave the model's output alone, in float64, on random weights.

Every cast to a lower precision is widened in the run: models that cast to float32 inside would
otherwise show 1e-7 on a right group. Weights are drawn at random, because a test on freshly initialised weights (norm scales all
1, biases all 0) proves little. Right groups read below 1e-12, wrong ones above 1e-7; the line is drawn at 1e-9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from workbench.errors import WorkbenchError
from workbench.progress import Progress, Reporter
from workbench.symmetry.bench import Bench, Runner
from workbench.symmetry.capture import Capture, capture, split_inputs
from workbench.symmetry.element import Element
from workbench.symmetry.leaving_out import leave_one_out
from workbench.symmetry.linear import LinearFactor, change_basis
from workbench.symmetry.random_weights import noisy, random_weights
from workbench.symmetry.widened import GraphInFloat64, ModuleInFloat64

if TYPE_CHECKING:
    from workbench.symmetry.group import Symmetry

TOLERANCE = 1e-9
_TRIES = 6  # elements of one factor before it is found innocent of a failure of the whole
_LEAVE_ONE_OUT_BUDGET = 20_000  # graph nodes evaluated over all leave-one-out runs


@dataclass(frozen=True)
class SymmetryCheck:
    """The verdict.

    max_relative_error: max |y − y'| / (max |y| + floor) over all samples and shapes (see ``Bench``); per_group: the same over the
    samples in which that factor moved, and for every change of basis; passed: all below 1e-9. Every leaf of a factor is then left
    behind once while the others move: needed: how many changed the function; dead: (factor, tensor) where nothing of that tensor
    did (a key bias under softmax); dead_parts: (factor, tensor, axis, start, stop) where only this part did not (the key's rows of
    a packed bias); untested: how many were left out for cost; shapes: the input shapes it ran at; samples, seed: how many elements,
    and from which seed.
    """

    max_relative_error: float
    per_group: Mapping[str, float]
    passed: bool
    dead: tuple[tuple[str, str], ...] = ()
    dead_parts: tuple[tuple[str, str, int, int, int], ...] = ()
    needed: int = 0
    untested: int = 0
    shapes: tuple[str, ...] = ()
    samples: int = 0
    seed: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SymmetryCheck:
        parts = tuple(tuple(part) for part in data.get("dead_parts", ()))
        pairs = tuple((group, tensor) for group, tensor in data["dead"])
        return cls(**{**data, "dead": pairs, "dead_parts": parts, "shapes": tuple(data["shapes"])})


def check(symmetry: Symmetry, model: nn.Module, example_inputs: Any, *, samples: int = 3, seed: int = 0) -> SymmetryCheck:
    """Prove by test that every element of ``symmetry`` keeps the function of ``model`` at the shapes of ``example_inputs``.

    The weights are random (``seed``), so the verdict is about the architecture; pass inputs of another shape than those the
    group was found on to catch a group that holds for one shape only. Raises where the state dict does not fit.
    """
    symmetry.require_fits({name: t for name, t in model.state_dict().items() if isinstance(t, Tensor)})
    return check_captured(
        symmetry,
        capture(model, example_inputs, outputs=symmetry.outputs, decompose=False),
        example_inputs,
        samples=samples,
        seed=seed,
    )


def check_captured(
    symmetry: Symmetry,
    captured: Capture,
    example_inputs: Any,
    *,
    samples: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> SymmetryCheck:
    """``check`` on an exported model; also at one more batch size, and at length 2 where an axis has length 1.

    At one position a rotary table is constant, and the group found there may be too large. At other shapes the module itself is
    run, which no export stands behind, or where it does not agree with the graph, another export. Shapes that the model does not
    take are passed over; the verdict lists those it covers. progress: called once per run.
    """
    report = Reporter(progress, "proving by test")
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(captured, generator)
    inputs = noisy(example_inputs, generator)
    bench = Bench(symmetry, GraphInFloat64(captured, inputs), weights, generator, report.step)
    verdict = replace(_verdict(bench, samples, seed), shapes=(_shape(example_inputs),))
    if not verdict.passed:
        return verdict
    others = list(_other_shapes(example_inputs))
    module = _module_in_float64(captured, inputs, bench) if others else None
    for number, other in enumerate(others, 1):
        runner = _runner_at(captured, module, other, noisy(other, generator))
        if not _runs(runner, weights):
            continue
        second = _verdict(Bench(symmetry, runner, weights, generator, report.step), 1, seed + number)
        worst = {name: max(error, second.per_group[name]) for name, error in verdict.per_group.items()}
        verdict = replace(
            verdict,
            max_relative_error=max(verdict.max_relative_error, second.max_relative_error),
            per_group=worst,
            passed=second.passed,
            shapes=(*verdict.shapes, _shape(other)),
        )
        if not verdict.passed:
            return verdict
    nodes = len(captured.program.graph.nodes)
    return leave_one_out(bench, verdict, _LEAVE_ONE_OUT_BUDGET // nodes)


def _module_in_float64(captured: Capture, inputs: Any, bench: Bench) -> ModuleInFloat64 | None:
    """The module, where it gives the graph's outputs."""
    module = ModuleInFloat64(captured, inputs)
    return module if _runs(module, bench.weights) and bench.agrees(module, TOLERANCE) else None


def _runner_at(captured: Capture, module: ModuleInFloat64 | None, example_inputs: Any, inputs: Any) -> Runner | None:
    if module is not None:
        return module.at(inputs)
    try:
        again = capture(captured.module, example_inputs, outputs=captured.wanted, decompose=False)
    except WorkbenchError:
        return None
    return GraphInFloat64(again, inputs)


def _runs(runner: Runner | None, weights: dict[str, Tensor]) -> bool:
    try:
        return runner is not None and bool(runner.run(weights))
    except Exception:  # whatever a model raises at a shape or type it was not made for
        return False


def _shape(example_inputs: Any) -> str:
    leaves = pytree.tree_leaves(split_inputs(example_inputs))
    return ", ".join("×".join(map(str, leaf.shape)) for leaf in leaves if isinstance(leaf, Tensor))


def _verdict(bench: Bench, samples: int, seed: int) -> SymmetryCheck:
    symmetry = bench.symmetry
    names = [*symmetry.groups, *symmetry.scalings]
    generator = torch.Generator().manual_seed(seed)
    per_group = dict.fromkeys(names, 0.0)
    for sample in range(samples if names else 0):
        # The first element moves every factor, the others a random half, so that no two errors can always cancel.
        chosen = names if sample == 0 else [n for n in names if torch.rand((), generator=generator) < 0.5] or names
        drawn = symmetry.sample(seed * 1000 + sample)
        error = bench.error(restless(drawn) if sample == 0 else drawn.restrict(chosen))
        for name in chosen:
            per_group[name] = max(per_group[name], error)
    bases = errors_of_bases(bench, symmetry.linear, seed)
    worst = max([*per_group.values(), *bases.values()], default=0.0)
    passed = worst <= TOLERANCE
    if not all(error <= TOLERANCE for error in per_group.values()):
        per_group = {name: _alone(bench, name, seed) for name in names}
    per_group |= bases
    return SymmetryCheck(worst, per_group, passed, samples=samples, seed=seed)


def errors_of_bases(bench: Bench, linear: Sequence[LinearFactor], seed: int) -> dict[str, float]:
    """Name -> the relative change of the output under a random change of basis: of all at once, and where that is too much, of
    each by itself."""
    generator = torch.Generator().manual_seed(seed)
    matrices = {factor.name: factor.sample(generator) for factor in linear}
    together = _error_of_bases(bench, linear, matrices) if linear else 0.0
    if together <= TOLERANCE or len(linear) == 1:
        return dict.fromkeys(matrices, together)
    return {factor.name: _error_of_bases(bench, [factor], matrices) for factor in linear}


def _error_of_bases(bench: Bench, linear: Sequence[LinearFactor], matrices: Mapping[str, Tensor]) -> float:
    weights = dict(bench.weights)
    for factor in linear:
        weights |= change_basis(bench.symmetry, factor, matrices[factor.name], weights)
    return bench.change(weights)


def keeping(
    symmetry: Symmetry, captured: Capture, example_inputs: Any, candidates: Sequence[LinearFactor], seed: int = 0
) -> tuple[LinearFactor, ...]:
    """Those of ``candidates`` that keep the function at the shapes of ``example_inputs``."""
    generator = torch.Generator().manual_seed(seed)
    weights, inputs = random_weights(captured, generator), noisy(example_inputs, generator)
    bench = Bench(symmetry, GraphInFloat64(captured, inputs), weights, generator, lambda: None)
    errors = errors_of_bases(bench, candidates, seed)
    return tuple(factor for factor in candidates if errors[factor.name] <= TOLERANCE)


def _alone(bench: Bench, name: str, seed: int) -> float:
    """The error of one factor or scaling by itself, over several elements: one of few units or signs is often the identity."""
    inside = [other for other, group in bench.symmetry.groups.items() if name in group.over]  # copies move with their block
    worst = 0.0
    for sample in range(_TRIES):
        worst = max(worst, bench.error(bench.symmetry.sample(seed * 1000 + sample).restrict([name, *inside])))
        if not worst <= TOLERANCE:
            break
    return worst


def restless(element: Element) -> Element:
    """The element in which every permutation that is the identity (one in two of S_2) became a cycle of all units."""
    moved = {}
    for name, perm in element.permutations.items():
        units = torch.arange(perm.shape[-1])
        still = (perm == units).all(-1, keepdim=True)
        moved[name] = torch.where(still, units.roll(1), perm)
    return replace(element, permutations=moved)


def _other_shapes(example_inputs: Any) -> Iterator[Any]:
    """One example more, and every axis of length 1 behind the first doubled, in all inputs that have it."""
    larger = _larger_batch(example_inputs)
    if larger is not None:
        yield larger
    tensors = [leaf for leaf in pytree.tree_leaves(example_inputs) if isinstance(leaf, Tensor)]
    for axis in sorted({axis for tensor in tensors for axis, size in enumerate(tensor.shape) if axis and size == 1}):

        def doubled(leaf: Any, axis: int = axis) -> Any:
            short = isinstance(leaf, Tensor) and leaf.dim() > axis and leaf.shape[axis] == 1
            return torch.cat([leaf, leaf], axis) if short else leaf

        yield pytree.tree_map(doubled, example_inputs)


def _larger_batch(example_inputs: Any) -> Any | None:
    """The inputs with one more example, where all tensors share the size of their first axis."""
    tensors = [leaf for leaf in pytree.tree_leaves(example_inputs) if isinstance(leaf, Tensor)]
    if not tensors or any(t.dim() == 0 for t in tensors) or len({t.shape[0] for t in tensors}) != 1:
        return None
    return pytree.tree_map(lambda leaf: torch.cat([leaf, leaf[:1]]) if isinstance(leaf, Tensor) else leaf, example_inputs)
