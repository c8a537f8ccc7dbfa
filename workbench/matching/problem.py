"""The matching problem: which tensors count, what a move gains, and the cost matrix of one factor with the others held.

    objective(π) = Σ_k ⟨A_k, π(B_k)⟩            (largest where ‖A − π(B)‖ is smallest, since permutations keep norms)
    C_p = Σ_(k, a) mat_a(A_k) · mat_a(B̃_k)ᵀ      over every tensor k and axis a that factor p moves,

where mat_a brings axis a to the front and B̃_k is B_k already moved on every *other* axis (Ainsworth et al., arXiv 2209.04836,
section 3.2). It works on ``layout.blocks``, so flattened convolutions, concatenations and dependent factors need no extra case.
Signs, where the symmetry has them, are searched along with the permutations (``signed``); positive scales are not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from workbench.devices import resolve_device
from workbench.errors import WorkbenchError
from workbench.matching.data import MatchingData
from workbench.states import StateDict
from workbench.symmetry.element import Element
from workbench.symmetry.entries import Stack
from workbench.symmetry.group import Symmetry
from workbench.symmetry.layout import Block, Layout, blocks
from workbench.symmetry.scaling import SIGN, Scaling, along, scaled_axes

# Running statistics describe data, not weights: π moves them, but they must not pull on the match. A discovered symmetry knows
# its buffers; one made from a hand-written specification does not, and goes by these names.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def cost_tensors(symmetry: Symmetry, *, include_biases: bool = True) -> tuple[str, ...]:
    """Names of the tensors that count: float parameters, tied ones once, no running statistics.

    include_biases=False also leaves out everything with a single axis: biases, norm gains and shifts.
    """
    return tuple(
        name
        for name, entry in symmetry.tensors.items()
        if entry.role in ("moved", "fixed")
        and name not in symmetry.aliases
        and not entry.buffer
        and name.rpartition(".")[2] not in STATISTICS
        and (include_biases or len(entry.shape) > 1)
    )


class MatchingProblem:
    """Two state dicts of one symmetry, as float64 copies on ``device``, cut into blocks.

    names: the tensors that count (default ``cost_tensors``); ``without_biases()`` gives the same problem on weights alone.
    start: the element a matcher should go on from (None: its own start). data: the model and the examples that matchers beyond
    weights look at (None: there are none).
    """

    def __init__(
        self,
        symmetry: Symmetry,
        anchor: StateDict,
        moving: StateDict,
        *,
        names: Iterable[str] | None = None,
        device: str | torch.device = "cpu",
        start: Element | None = None,
        data: MatchingData | None = None,
    ) -> None:
        self.symmetry, self.anchor, self.moving = symmetry, anchor, moving
        self.start, self.data = start, data
        self.device = resolve_device(device)
        self.names = cost_tensors(symmetry) if names is None else tuple(names)
        self.blocks: list[tuple[Block, Block]] = []
        self.sources: list[tuple[str, int]] = []  # of each block: its tensor, and which part of that tensor it is
        self.occurrences: dict[str, list[tuple[int, int]]] = {name: [] for name in symmetry.groups}
        self.signs: list[list[tuple[Scaling, int]]] = []  # of each block: the signs that negate entries of it, and along which axis
        self.constant = 0.0
        self.still: dict[tuple[str, int], Block] = {}  # blocks of the moving model that no factor moves
        for piece in self._counted_pieces():
            first, second = (self._gathered(piece, state) for state in (anchor, moving))
            negated = _negated(symmetry, piece.names[0], first, piece.layouts)
            for part, pair in enumerate(zip(blocks(first, piece.layouts), blocks(second, piece.layouts), strict=True)):
                labels = [label for label in pair[0].labels if label in symmetry.groups]
                if not labels:
                    self.constant += float((pair[0].view * pair[1].view).sum())
                    self.still[piece.names[0], part] = pair[1]
                    continue
                for axis, label in enumerate(pair[0].labels):
                    if label in symmetry.groups:
                        self.occurrences[label].append((len(self.blocks), axis))
                self.blocks.append(pair)
                self.signs.append(negated.get(part, []))
                self.sources.append((piece.names[0], part))

    def _counted_pieces(self) -> list[Stack]:
        counted = set(self.names)
        return [
            piece
            for piece in self.symmetry.pieces()
            if counted.issuperset(piece.names) and self.anchor[piece.names[0]].is_floating_point()
        ]

    def _gathered(self, piece: Stack, state: StateDict) -> Tensor:
        return piece.gather(state).detach().to(self.device, torch.float64).contiguous()

    def with_anchor(self, anchor: StateDict) -> MatchingProblem:
        """The same problem for another anchor; the moving model's blocks are shared, so that this is cheap to do often."""
        other = copy(self)
        other.anchor, other.blocks, other.constant = anchor, [], 0.0
        seconds = dict(zip(self.sources, (second for _, second in self.blocks), strict=True))
        for piece in self._counted_pieces():
            gathered = self._gathered(piece, anchor)
            for part, first in enumerate(blocks(gathered, piece.layouts)):
                source = piece.names[0], part
                if source in seconds:
                    other.blocks.append((first, seconds[source]))
                else:
                    other.constant += float((first.view * self.still[source].view).sum())
        return other

    def without_biases(self) -> MatchingProblem:
        names = [name for name in self.names if len(self.symmetry.tensors[name].shape) > 1]
        return self.on(self.anchor, self.moving, names=names)

    def on(self, anchor: StateDict, moving: StateDict, *, names: Iterable[str] | None = None) -> MatchingProblem:
        """The same problem for other weights (truncated, weighted, a moving target); ``names`` as they are here by default."""
        names = self.names if names is None else names
        return MatchingProblem(self.symmetry, anchor, moving, names=names, device=self.device, start=self.start, data=self.data)

    def starting_at(self, start: Element | None) -> MatchingProblem:
        """The same problem with another start."""
        other = copy(self)
        other.start = start
        return other

    @cached_property
    def neighbours(self) -> dict[str, frozenset[str]]:
        """Factor -> the other factors that share a tensor block with it: the ones its cost matrix depends on."""
        found: dict[str, set[str]] = {name: set() for name in self.symmetry.groups}
        for block, _ in self.blocks:
            labels = {label for label in block.labels if label in found}
            for label in labels:
                found[label] |= labels - {label}
        for name, group in self.symmetry.groups.items():
            for outer in group.over:
                found[name].add(outer)
                found[outer].add(name)
        return {name: frozenset(names) for name, names in found.items()}

    @cached_property
    def quadratic(self) -> frozenset[str]:
        """Factors that label two axes of one block (a square recurrent matrix): there the objective is not linear in them."""
        return frozenset(label for block, _ in self.blocks for label in block.labels if label and block.labels.count(label) > 1)

    @cached_property
    def dependents(self) -> dict[str, tuple[str, ...]]:
        """Outer factor -> the factors with one copy for each of its values."""
        groups = self.symmetry.groups
        return {name: tuple(n for n, g in groups.items() if name in g.over) for name in groups}

    def objective(self, element: Element, *, skip: Collection[int] = ()) -> float:
        """Σ_k ⟨A_k, π(B_k)⟩ over the tensors that count, in float64; skip: numbers of blocks to leave out."""
        counted = (index for index in range(len(self.blocks)) if index not in skip)
        total = sum((self.blocks[index][0].view * self.moved(index, element)).sum() for index in counted)
        return self.constant + float(total)

    def moved(self, index: int, element: Element, skip: Iterable[int] = ()) -> Tensor:
        """The moving model's block moved, and negated, on every axis but those in ``skip``."""
        block, held = self.blocks[index][1], set(skip)
        labels = tuple(None if axis in held else label for axis, label in enumerate(block.labels))
        view = element.apply_to_block(Block(block.view, labels, block.origin))
        for sign, axis in self.signs[index]:
            values = element.scales.get(sign.name)
            if axis not in held and values is not None and bool((values < 0).any()):
                view = view * along(block, axis, sign, values.to(view.device, view.dtype))
        return view

    @cached_property
    def sign_names(self) -> dict[str, tuple[str, ...]]:
        """Factor -> its signs that are searched. Not those of whole heads, which are all signs inside a head at once, nor those
        of units whose order is fixed."""
        found: dict[str, list[str]] = {name: [] for name in self.symmetry.groups}
        for name, scaling in self.symmetry.scalings.items():
            group = self.symmetry.groups.get(scaling.factor)
            if scaling.kind == SIGN and group is not None and group.over == scaling.over and not self.dependents[scaling.factor]:
                found[scaling.factor].append(name)
        return {name: tuple(names) for name, names in found.items()}

    def exponents(self, factor: str, index: int, axis: int) -> tuple[int, ...]:
        """Which of the signs of ``factor`` negate this block along this axis: 0 or 1 for each."""
        acting = {sign.name for sign, along_axis in self.signs[index] if along_axis == axis}
        return tuple(int(name in acting) for name in self.sign_names[factor])

    def searched(self, element: Element) -> Element:
        """``element`` with its permutations and those of its signs that are searched; everything else as it is."""
        signs = {name for names in self.sign_names.values() for name in names if name in element.scales}
        scales = {**self.symmetry.identity().scales, **{name: element.scales[name] for name in signs}}
        return replace(element, scales=scales, actions=self.symmetry.scalings)

    def work(self, factor: str) -> float:
        """Rough multiply-adds of one visit: the products that build the cost matrix, and the cube of the assignment."""
        group = self.symmetry.groups[factor]
        products = sum(group.size * self.blocks[index][0].view.numel() for index, _ in self.occurrences[factor])
        return products + group.copies * group.size**3


def _negated(symmetry: Symmetry, piece: str, tensor: Tensor, layouts: Iterable[Layout]) -> dict[int, list[tuple[Scaling, int]]]:
    """Number of a block of the piece -> the signs with an odd power there."""
    layouts, found = tuple(layouts), {}
    for scaling in symmetry.scalings.values():
        for part, _, axis, power in scaled_axes(tensor, layouts, piece, scaling) if scaling.kind == SIGN else ():
            if power % 2:
                found.setdefault(part, []).append((scaling, axis))
    return found


# A share is updated where at most this part of the units changed place, and computed anew after so many updates, so that their
# rounding does not add up.
UPDATED, REFRESHED = 0.7, 50


class CostMatrices:
    """Cost matrices of a problem; a block's share is computed again only where a permutation it depends on was replaced.

    Where only k of its n units changed place, the share changes by a product over those k: C + A[:, K] (B̃_new − B̃_old)[:, K]ᵀ.
    """

    def __init__(self, problem: MatchingProblem) -> None:
        self._problem = problem
        self._shares: dict[tuple[int, int], tuple[tuple[Tensor | None, ...], Tensor, int]] = {}
        self._fronts: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def of(self, factor: str, element: Element, *, only: set[str] | None = None) -> Tensor | None:
        """C of shape (*sizes of the factors it is over, n, n): ``C[β][i, j]`` for destination unit i and source unit j of copy β.

        only: use just the blocks whose other factors all lie in this set (None where there is no such block).
        """
        shares = self.by_signs(factor, element, only=only)
        return sum(shares.values()) if shares else None  # type: ignore[return-value]

    def by_signs(self, factor: str, element: Element, *, only: set[str] | None = None) -> dict[tuple[int, ...], Tensor]:
        """C apart for each set of blocks that the signs of ``factor`` act on alike: their exponents -> C, no sign applied."""
        found: dict[tuple[int, ...], Tensor] = {}
        for index, axis in self._problem.occurrences[factor]:
            labels = self._problem.blocks[index][0].labels
            others = tuple(label for d, label in enumerate(labels) if d != axis and label in self._problem.symmetry.groups)
            if only is not None and not set(others) <= only:
                continue
            share = self._share(index, axis, factor, others, element)
            exponents = self._problem.exponents(factor, index, axis)
            found[exponents] = found[exponents] + share if exponents in found else share
        return found

    def _share(self, index: int, axis: int, factor: str, others: tuple[str, ...], element: Element) -> Tensor:
        # Unchanged permutations are the same tensor objects, so identity tells whether a share is still valid.
        signs = (element.scales.get(sign.name) for sign, d in self._problem.signs[index] if d != axis)
        depends = (*(element.permutations[name] for name in others), *signs)
        known = self._shares.get((index, axis))
        if known is not None and all(a is b for a, b in zip(known[0], depends, strict=True)):
            return known[1]
        if known is not None and known[2] < REFRESHED:
            updated = self._updated(index, axis, factor, others, known[0], depends, known[1])
            if updated is not None:
                self._shares[index, axis] = depends, updated, known[2] + 1
                return updated
        first = self._problem.blocks[index][0]
        outer = [first.coordinate_of(axis, name) for name in self._problem.symmetry.groups[factor].over]
        share = front(first.view, outer, axis) @ front(self._problem.moved(index, element, [axis]), outer, axis).mT
        self._shares[index, axis] = depends, share, 0
        return share

    def _updated(
        self,
        index: int,
        axis: int,
        factor: str,
        others: tuple[str, ...],
        before: tuple[Tensor | None, ...],
        after: tuple[Tensor | None, ...],
        share: Tensor,
    ) -> Tensor | None:
        """The share after few units of the one other factor changed place; None where they are many, or there are other factors."""
        groups = self._problem.symmetry.groups
        if len(others) != 1 or len(before) != 1 or groups[factor].over or groups[others[0]].over:
            return None
        old, new = before[0], after[0]
        assert old is not None
        assert new is not None
        changed = (old != new).nonzero().flatten()
        if len(changed) > UPDATED * len(new):
            return None
        where = next(d for d, label in enumerate(self._problem.blocks[index][0].labels) if d != axis and label == others[0])
        first, second = self._by_unit(index, where)
        rows = [units.to(share.device) for units in (changed, new[changed], old[changed])]
        difference = second.index_select(0, rows[1]) - second.index_select(0, rows[2])
        behind = axis + (axis < where)  # where the factor's own axis is, with the other one in front
        parts = [part.movedim(behind, -1).flatten(0, -2) for part in (first.index_select(0, rows[0]), difference)]
        return torch.addmm(share, parts[0].mT, parts[1])

    def _by_unit(self, index: int, where: int) -> tuple[Tensor, Tensor]:
        """Both views of a block with one axis in front, contiguous: units of it are gathered as rows, again and again."""
        if (index, where) not in self._fronts:
            first, second = (block.view.movedim(where, 0).contiguous() for block in self._problem.blocks[index])
            self._fronts[index, where] = first, second
        return self._fronts[index, where]


def front(view: Tensor, outer: list[int], axis: int) -> Tensor:
    """Axes ``outer`` first, then ``axis``, and everything else flattened: (*outer sizes, n, rest)."""
    rest = [d for d in range(view.dim()) if d != axis and d not in outer]
    return view.permute(*outer, axis, *rest).flatten(len(outer) + 1) if rest else view.permute(*outer, axis).unsqueeze(-1)


def require_shared(symmetry: Symmetry) -> None:
    """Raise where the symmetry has nothing to match with: zero groups is never a success."""
    if not symmetry.groups:
        reasons = [note for note in symmetry.notes if "defect" in note]
        reasons += [f"{pin.tensor} axis {pin.axis} is pinned by {pin.reason}" for pin in symmetry.pinned[:3]]
        raise WorkbenchError(
            "The symmetry has no factor, so there is nothing to align",
            expected="at least one group of units that may change places",
            cause="; ".join(reasons) or "the model has no parameter with an axis of two or more",
            next_step="look at symmetry.explain()",
        )
