"""Changes of basis: factors on which more than permutations and scales act, reported and proved, and not searched.

Between two linear maps any invertible matrix may stand (values and output of a head: W_V ↦ A W_V, W_O ↦ W_O A⁻¹), one for every
copy of the factor. Between queries and keys that are turned by rotary positions only what commutes with all turns may stand: for
every frequency a rotation by θ and a scale s of its pair of units, queries with s, keys with 1/s (arXiv 2104.09864 has the turns).

    (A w)[…, i, …] = Σ_j M[i, j] w[…, j, …]     M = A where the power of the leaf is 1, A⁻ᵀ where it is −1
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.symmetry.layout import Block, Layout, Leaf, Product, Sum, factors
from workbench.symmetry.scaling import RANGE as SCALES
from workbench.symmetry.scaling import SCALE, Scaling, leaf_blocks

if TYPE_CHECKING:
    from workbench.symmetry.group import Symmetry

GENERAL, ROTATION = "general", "rotation-scale"


@dataclass(frozen=True)
class LinearFactor:
    """kind: "general", where GL(size) acts on the units of ``factor``, or "rotation-scale", where a rotation and a scale act on
    every pair of units (size 2) at the fixed coordinate ``factor``; copies: how many matrices there are; tensors: what they act on;
    over, over_sizes: the factors with a matrix for each of their values; powers: (first tensor of a piece, axis, number of the
    leaf) -> 1 or −1."""

    factor: str
    size: int
    copies: int
    tensors: tuple[str, ...]
    kind: str = GENERAL
    over: tuple[str, ...] = ()
    over_sizes: tuple[int, ...] = ()
    powers: Mapping[tuple[str, int, int], int] | None = None

    @property
    def name(self) -> str:
        return f"{'basis' if self.kind == GENERAL else 'rotations'} of {self.factor}"

    @property
    def symbol(self) -> str:
        """GL(4)^2, or (scale × rotation)^16 for 16 pairs of units."""
        group = f"GL({self.size})" if self.kind == GENERAL else "(scale × rotation)"
        return f"{group}^{self.copies}" if self.copies > 1 else group

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrices: one for every copy, and of rotations one for every pair too."""
        pairs = () if self.kind == GENERAL else (self.copies // _product(self.over_sizes),)
        return (*self.over_sizes, *pairs, self.size, self.size)

    @property
    def dimension(self) -> int:
        """How many real numbers may be chosen, the scales that are part of it included."""
        return self.copies * (self.size**2 if self.kind == GENERAL else 2)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Random matrices of condition at most 4: turned, scaled by numbers between ½ and 2, and turned again."""
        if self.kind == ROTATION:
            angle = 2 * torch.pi * torch.rand(self.shape[:-2], generator=generator, dtype=torch.float64)
            scale = torch.exp((2 * torch.rand(self.shape[:-2], generator=generator, dtype=torch.float64) - 1) * SCALES)
            rows = [torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)]
            return scale[..., None, None] * torch.stack(rows, -2)
        one, two = (torch.linalg.qr(torch.randn(self.shape, generator=generator, dtype=torch.float64))[0] for _ in range(2))
        scale = torch.exp((2 * torch.rand(self.shape[:-1], generator=generator, dtype=torch.float64) - 1) * SCALES)
        return one @ (scale.unsqueeze(-1) * two)

    def shared(self) -> LinearFactor:
        """With the same matrices for all values of the factors it is over."""
        return replace(self, copies=self.copies // _product(self.over_sizes), over=(), over_sizes=())

    def told_of(self, stacks: Mapping[str, tuple[str, ...]]) -> LinearFactor:
        """The same factor where a stack goes by the name of its first tensor."""
        tensors = tuple(name for tensor in self.tensors for name in stacks.get(tensor, (tensor,)))
        powers = {(stacks.get(tensor, (tensor,))[0], axis, number): p for (tensor, axis, number), p in (self.powers or {}).items()}
        return replace(self, tensors=tensors, powers=powers)

    def to_json(self) -> dict[str, Any]:
        out = {key: getattr(self, key) for key in ("factor", "size", "copies", "tensors", "kind", "over", "over_sizes")}
        return out | {"powers": [[*leaf, power] for leaf, power in (self.powers or {}).items()]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LinearFactor:
        tuples = {key: tuple(data[key]) for key in ("tensors", "over", "over_sizes")}
        powers = {(tensor, axis, number): power for tensor, axis, number, power in data["powers"]}
        return cls(data["factor"], data["size"], data["copies"], kind=data["kind"], powers=powers, **tuples)


def change_basis(symmetry: Symmetry, factor: LinearFactor, matrices: Tensor, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of ``state`` that ``factor`` acts on, in the new basis; the others are not in the result.

    matrices: float64, of ``factor.shape``, invertible.
    """
    out: dict[str, Tensor] = {}
    inverse = torch.linalg.inv(matrices).mT
    for piece in symmetry.pieces():
        own = {(axis, number): p for (tensor, axis, number), p in (factor.powers or {}).items() if tensor == piece.names[0]}
        if not own or not all(name in state for name in piece.names):
            continue
        tensor = piece.gather(state).clone()
        found: dict[tuple[int, int], list[tuple[Block, int]]] = {}
        for _, block, axis, number in leaf_blocks(tensor, piece.layouts, factor.factor):
            if (block.origin[axis], number) in own:
                found.setdefault((block.origin[axis], number), []).append((block, axis))
        for axis in dict.fromkeys(axis for axis, _ in found):
            for numbers in _mixed_leaves(factor, piece.layouts[axis]):
                # Queries and keys may be rows of one tensor: each leaf has a power of its own.
                if (axis, numbers[0]) in found:
                    acting = (matrices if own[axis, numbers[0]] == 1 else inverse).to(tensor.device, tensor.dtype)
                    for views, dims in _together(factor, [found[axis, number] for number in numbers]):
                        _mix(views, dims, acting)
        out |= piece.scatter(tensor)
    return out


def _mixed_leaves(factor: LinearFactor, layout: Layout) -> list[tuple[int, ...]]:
    """The numbers of the leaves of ``factor`` in an axis, those together whose entries are mixed with one another."""
    if factor.kind == GENERAL:
        return [(number,) for number, _ in enumerate(_leaves(layout, factor.factor))]
    return _pairs(layout, factor.factor) or []


def _together(factor: LinearFactor, leaves: list[list[tuple[Block, int]]]) -> Iterator[tuple[list[Tensor], list[int]]]:
    """Views whose entries are mixed with one another, and the axes of each that the matrices have a copy for."""
    for group in zip(*leaves, strict=True):
        block, axis = group[0]
        outer = [block.coordinate_of(axis, name) for name in factor.over]
        if factor.kind == GENERAL:
            yield list(block.view.unbind(axis)), [d - (d > axis) for d in outer]
        elif len(group) == 2:
            yield [b.view for b, _ in group], [*outer, axis]
        else:
            yield list(block.view.unbind(axis + 1)), [*(d - (d > axis + 1) for d in outer), axis]


def _mix(views: list[Tensor], dims: list[int], matrices: Tensor) -> None:
    """views[i] ← Σ_j M[…, i, j] views[j], M indexed by the axes ``dims`` of the views."""
    rest = [d for d in range(views[0].dim()) if d not in dims]
    order = [*dims, *rest]
    flat = (view.permute(order) if rest else view.permute(order).unsqueeze(-1) for view in views)
    stacked = torch.stack([view.flatten(len(dims)) for view in flat], -2)
    for view, new in zip(views, (matrices @ stacked).unbind(-2), strict=True):
        view.permute(order).copy_(new.reshape([view.shape[d] for d in order]))


def rotation_candidates(symmetry: Symmetry) -> tuple[LinearFactor, ...]:
    """Where pairs of units at a fixed coordinate scale together, rotations of the pairs may act as well; a test must tell.

    The two units of a pair stand in two stretches of one axis (the first half of a head beside the second) or next to each other.
    """
    found = []
    for scaling in symmetry.scalings.values():
        if scaling.kind == SCALE and scaling.factor not in symmetry.groups and _in_pairs(symmetry, scaling):
            outer = _heads(symmetry, scaling)
            sizes = tuple(symmetry.groups[name].size for name in outer)
            copies = scaling.size * _product(sizes)
            powers = dict(scaling.powers)
            found.append(LinearFactor(scaling.factor, 2, copies, scaling.tensors, ROTATION, outer, sizes, powers))
    return tuple(found)


def _in_pairs(symmetry: Symmetry, scaling: Scaling) -> bool:
    if scaling.over or any(abs(power) != 1 for power in scaling.powers.values()):
        return False
    axes: dict[tuple[str, int], dict[int, int]] = {}
    for (tensor, axis, number), power in scaling.powers.items():
        axes.setdefault((tensor, axis), {})[number] = power
    for (tensor, axis), powers in axes.items():
        pairs = _pairs(_layouts(symmetry, tensor)[axis], scaling.factor)
        if pairs is None or any(len({powers.get(number) for number in pair}) > 1 for pair in pairs):
            return False
    return True


def _pairs(layout: Layout, factor: str) -> list[tuple[int, ...]] | None:
    """The leaves of ``factor`` in an axis by number: alone where the units of a pair are neighbours, else with the next one."""
    pairs: list[tuple[int, ...]] = []
    waiting: int | None = None
    for number, beside in enumerate(_leaves(layout, factor)):
        if waiting is None and not beside:
            waiting = number
        elif beside and waiting is not None:
            return None
        else:
            pairs.append((number,) if waiting is None else (waiting, number))
            waiting = None
    return pairs if waiting is None else None


def _leaves(layout: Layout, factor: str, beside: bool = False) -> Iterator[bool]:
    """For every leaf of ``factor`` in order: whether a fixed stretch of two follows it."""
    if isinstance(layout, Leaf):
        if layout.factor == factor:
            yield beside
    elif isinstance(layout, Product):
        for child, after in itertools.zip_longest(layout.children, layout.children[1:]):
            yield from _leaves(child, factor, after is not None and after.size == 2 and not tuple(factors(after)))
    else:
        for part in layout.parts:
            yield from _leaves(part, factor)


def _heads(symmetry: Symmetry, scaling: Scaling) -> tuple[str, ...]:
    """Factors beside the coordinate in every axis it stands in: the heads that queries and keys share."""
    axes = dict.fromkeys((tensor, axis) for tensor, axis, _ in scaling.powers)
    shared: list[str] | None = None
    for tensor, axis in axes:
        here = [name for name in _beside(_layouts(symmetry, tensor)[axis], scaling.factor) if not symmetry.groups[name].over]
        shared = here if shared is None else [name for name in shared if name in here]
    return tuple(shared or ())


def _beside(layout: Layout, factor: str) -> list[str]:
    """Factors that multiply every part of ``layout`` with ``factor`` in it, each once."""
    if isinstance(layout, Product) and factor in factors(layout):
        own = [child for child in layout.children if factor in factors(child)]
        others = [name for child in layout.children if child not in own for name in factors(child) if not name.startswith("=")]
        return [*others, *(name for child in own for name in _beside(child, factor))]
    parts = [_beside(part, factor) for part in layout.parts if factor in factors(part)] if isinstance(layout, Sum) else []
    return [name for name in dict.fromkeys(parts[0]) if all(name in part for part in parts)] if parts else []


def _layouts(symmetry: Symmetry, piece: str) -> tuple[Layout, ...]:
    return next(one.layouts for one in symmetry.pieces() if one.names[0] == piece)


def _product(sizes: Iterable[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
