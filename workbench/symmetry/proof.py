"""Proof by test: random elements of the group must leave the model's output alone, in float64, on random weights.

The exported graph is run, not the module, with every lower-precision cast widened: models that cast to float32 inside would
otherwise show 1e-7 on a right group. Weights are drawn at random, because a test on freshly initialised weights (norm scales all
1, biases all 0) proves little. Right groups read below 1e-12, wrong ones above 1e-7; the line is drawn at 1e-9.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from workbench.errors import WorkbenchError
from workbench.progress import Progress, Reporter
from workbench.symmetry.capture import INPUT, MOVABLE, Capture, capture, split_inputs
from workbench.symmetry.element import Element
from workbench.symmetry.occurrences import Occurrence, occurrences
from workbench.symmetry.positive import roots_taken_of
from workbench.symmetry.widened import Widened

if TYPE_CHECKING:
    from workbench.symmetry.group import Symmetry

TOLERANCE = 1e-9
NEEDED = 1e-7  # leaving out a member that matters changes the output by at least this much
_FLOOR = 1e-5  # share of a typical activation below which an output counts as structurally zero
_NUDGE = 1e-12  # relative change of the weights that shows how well the output is determined
_NOISE = 0.1  # share of the output's sensitivity to such a change that is taken for noise
_TRIES = 6  # elements of one factor before it is found innocent of a failure of the whole
_LEAVE_ONE_OUT_BUDGET = 20_000  # graph nodes evaluated over all leave-one-out runs


@dataclass(frozen=True)
class SymmetryCheck:
    """The verdict.

    max_relative_error: max |y − y'| / (max |y| + floor) over all samples and shapes (see ``_Bench``); per_group: the same over the
    samples in which that factor moved; passed: all below 1e-9. Every leaf of a factor is then left behind once while the others
    move: needed: how many changed the function; dead: (factor, tensor) where nothing of that tensor did (a key bias under softmax);
    dead_parts: (factor, tensor, axis, start, stop) where only this part did not (the key's rows of a packed bias); untested: how
    many were left out for cost; shapes: the input shapes it ran at; samples, seed: how many elements, and from which seed.
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

    At one position a rotary table is constant, and the group found there may be too large. Shapes that the model does not take are
    passed over; the verdict lists those it covers. progress: called once per run.
    """
    report = Reporter(progress, "proving by test")
    verdict = _Bench(symmetry, captured, example_inputs, seed, report).verdict(samples)
    for number, other in enumerate(_other_shapes(example_inputs)):
        if not verdict.passed:
            break
        try:
            again = capture(captured.module, other, outputs=captured.wanted, decompose=False)
            second = _Bench(symmetry, again, other, seed + 1 + number, report).verdict(1, leave_one_out=False)
        except WorkbenchError:
            continue
        worst = {name: max(error, second.per_group[name]) for name, error in verdict.per_group.items()}
        verdict = replace(
            verdict,
            max_relative_error=max(verdict.max_relative_error, second.max_relative_error),
            per_group=worst,
            passed=second.passed,
            shapes=(*verdict.shapes, *second.shapes),
        )
    return verdict


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


class _Bench:
    """One captured model with random float64 weights and inputs, and its output on the unmoved weights.

    An output that is zero but for rounding (a sum of x − mean x) has no size of its own to compare a change with. The floor under
    it is a small share of a typical activation (the median over all results of their largest entries: a mask of −10³⁸ is none),
    and of what a change of the weights in the twelfth digit does to the output, which is large where large numbers cancel.
    """

    def __init__(self, symmetry: Symmetry, captured: Capture, example_inputs: Any, seed: int, report: Reporter) -> None:
        self.symmetry, self.captured, self.seed, self._report = symmetry, captured, seed, report
        generator = torch.Generator().manual_seed(seed)
        positive = {captured.roles[node.name][1] for node in roots_taken_of(captured.program.graph)}
        self.weights: dict[str, Tensor] = {}
        self.constants: dict[str, Any] = {}
        for placeholder, (role, name, value) in captured.roles.items():
            if role == MOVABLE and name not in self.weights:
                shape = tuple(value.shape)
                draw = torch.randn(shape, generator=generator, dtype=torch.float64)
                fan_in = max(1, math.prod(shape[1:]))
                if name in positive:
                    draw = draw.abs() + 0.5
                elif len(shape) > 1:
                    draw = draw * (1.4 / math.sqrt(fan_in))
                else:
                    draw = 1 + 0.5 * draw
                self.weights[name] = draw
            elif role not in (MOVABLE, INPUT):
                floating = isinstance(value, Tensor) and value.is_floating_point()
                self.constants[placeholder] = value.cpu().double() if floating else _cpu(value)
        args, kwargs = split_inputs(example_inputs)
        leaves = pytree.tree_leaves((args, kwargs))
        self.inputs = [self._noisy(leaf, generator) for leaf in leaves]
        self.shape = ", ".join("×".join(map(str, leaf.shape)) for leaf in leaves if isinstance(leaf, Tensor))
        self.peaks: list[float] = []
        self.reference = self._run(self.weights)
        typical = statistics.median(self.peaks) if self.peaks else 0.0
        nudged = self._run(
            {
                name: weight * (1 + _NUDGE * torch.randn(_rows(weight), generator=generator, dtype=torch.float64))
                for name, weight in self.weights.items()
            }
        )
        self.floors = [
            _FLOOR * typical + _NOISE * _largest_change(one, other) / _NUDGE
            for one, other in zip(self.reference, nudged, strict=True)
        ]

    @staticmethod
    def _noisy(leaf: Any, generator: torch.Generator) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
            return leaf.cpu().double().nan_to_num() + noise
        return _cpu(leaf)

    def _run(self, weights: Mapping[str, Tensor]) -> list[Tensor]:
        inputs = iter(self.inputs)
        flat = []
        for placeholder, (role, name, _) in self.captured.roles.items():
            if role == MOVABLE:
                flat.append(weights[name])
            else:
                flat.append(next(inputs) if role == INPUT else self.constants[placeholder])
        runner = Widened(self.captured.program.graph_module)
        with torch.no_grad():
            # A graph that works in place must not change what the next run starts from.
            values = runner.run(*(v.clone() if isinstance(v, Tensor) else v for v in flat))
        self._report.step()
        self.peaks = [peak for peak in runner.peaks if peak]
        return [
            value
            for value, (_, _, matters) in zip([v for v in values if isinstance(v, Tensor)], self.captured.outputs, strict=False)
            if matters
        ]

    def _moved(self, element: Element, left_behind: Occurrence | None = None) -> dict[str, Tensor]:
        moved = dict(self.weights)
        for piece in self.symmetry.pieces():
            if all(name in self.weights for name in piece.names):
                layouts = (left_behind.rest if left_behind is not None and left_behind.piece == piece else piece).layouts
                moved |= piece.scatter(element.apply_to_tensor(piece.gather(self.weights), layouts, piece.names[0]))
        return moved

    def error(self, element: Element, left_behind: Occurrence | None = None) -> float:
        """Relative change of the output under ``element``; ``left_behind``: a leaf that does not move along."""
        worst = 0.0
        moved = self._run(self._moved(element, left_behind))
        for before, after, floor in zip(self.reference, moved, self.floors, strict=True):
            if not before.is_floating_point() and not before.is_complex():
                change = float(not torch.equal(before, after))
            elif before.numel() == 0:
                change = 0.0
            else:
                scale = _size(before) + floor
                change = _largest_change(before, after) / scale if scale else 0.0
            worst = max(worst, change) if math.isfinite(change) else math.inf
        return worst

    def verdict(self, samples: int, *, leave_one_out: bool = True) -> SymmetryCheck:
        names = [*self.symmetry.groups, *self.symmetry.scalings]
        generator = torch.Generator().manual_seed(self.seed)
        per_group = dict.fromkeys(names, 0.0)
        for sample in range(samples if names else 0):
            # The first element moves every factor, the others a random half, so that no two errors can always cancel.
            chosen = names if sample == 0 else [n for n in names if torch.rand((), generator=generator) < 0.5] or names
            drawn = self.symmetry.sample(self.seed * 1000 + sample)
            error = self.error(restless(drawn) if sample == 0 else drawn.restrict(chosen))
            for name in chosen:
                per_group[name] = max(per_group[name], error)
        worst = max(per_group.values(), default=0.0)
        passed = worst <= TOLERANCE
        if not passed:
            per_group = {name: self._alone(name) for name in names}
        verdict = SymmetryCheck(worst, per_group, passed, shapes=(self.shape,), samples=samples, seed=self.seed)
        return self._leave_one_out(verdict) if passed and leave_one_out else verdict

    def _alone(self, name: str) -> float:
        """The error of one factor or scaling by itself, over several elements: one of few units or signs is often the identity."""
        worst = 0.0
        for sample in range(_TRIES):
            element = self.symmetry.sample(self.seed * 1000 + sample)
            worst = max(worst, self.error(element.restrict([name, *self._inside(name)])))
            if not worst <= TOLERANCE:
                break
        return worst

    def _inside(self, name: str) -> list[str]:
        """Factors that depend on ``name``: their copies move with it."""
        return [other for other, group in self.symmetry.groups.items() if name in group.over]

    def _leave_one_out(self, verdict: SymmetryCheck) -> SymmetryCheck:
        """Each leaf left behind once. Elements without fixed points are used: a random one of S_2 is often the identity."""
        found = occurrences(self.symmetry)
        tests = [leaf for leaves in found.values() if len(leaves) > 1 for leaf in leaves]
        nodes = len(self.captured.program.graph.nodes)
        affordable = max(1, _LEAVE_ONE_OUT_BUDGET // (nodes * (1 + sum(w.numel() for w in self.weights.values()) // 10**6)))
        tested = tests[:: max(1, math.ceil(len(tests) / affordable))]
        dead = [leaf for leaf in tested if self.error(self._roll(leaf.factor), leaf) < NEEDED]
        # A tensor of one leaf is dead as a whole; of several, each may do without its move and yet not all of them.
        whole = {(leaf.factor, leaf.tensor) for leaf in dead if sum(o.tensor == leaf.tensor for o in found[leaf.factor]) == 1}
        return replace(
            verdict,
            dead=tuple(dict.fromkeys((o.factor, o.tensor) for o in dead if (o.factor, o.tensor) in whole)),
            dead_parts=tuple((o.factor, o.tensor, o.axis, o.start, o.stop) for o in dead if (o.factor, o.tensor) not in whole),
            needed=len(tested) - len(dead),
            untested=len(tests) - len(tested),
        )

    def _roll(self, name: str) -> Element:
        """i ↦ i − 1 in every copy of the factor ``name``, which alone moves."""
        group = self.symmetry.groups[name]
        roll = torch.arange(group.size).roll(1).expand(*group.over_sizes, group.size).clone()
        return Element({name: roll}, {name: group.over})


def _rows(weight: Tensor) -> tuple[int, ...]:
    """One number for each row; for each entry it would take as long to draw as a run takes."""
    return (*weight.shape[:1], *(1,) * (weight.dim() - 1))


def restless(element: Element) -> Element:
    """The element in which every permutation that is the identity (one in two of S_2) became a cycle of all units."""
    moved = {}
    for name, perm in element.permutations.items():
        units = torch.arange(perm.shape[-1])
        still = (perm == units).all(-1, keepdim=True)
        moved[name] = torch.where(still, units.roll(1), perm)
    return replace(element, permutations=moved)


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


def _cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value
