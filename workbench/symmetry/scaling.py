"""Scales and signs as part of an element: one number for every unit of a factor, and the powers with which tensors take it.

    (s w)[…, j, …] = s_j^d · w[…, j, …]        d: the power of that leaf of the tensor (see ``degrees``)

A scaling belongs to a factor, or to a fixed coordinate (a rotary pair, whose order is pinned and whose scale is not). Where its
factor depends on others it has a number for every copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from workbench.symmetry.layout import Block, Layout, Leaf, Product, Sum, blocks

SCALE, SIGN = "scale", "sign"
# Largest |log s| of a sampled scale: enough to show an error, little enough for float64.
RANGE = 0.7


@dataclass(frozen=True)
class Scaling:
    """powers: (first tensor of a piece, axis, number of the leaf) -> power; kind: "scale" (s > 0) or "sign" (s = ±1); factor: whose
    units are scaled; over, over_sizes: the factors it has a copy for; size: units in a copy."""

    name: str
    factor: str
    kind: str
    size: int
    over: tuple[str, ...]
    over_sizes: tuple[int, ...]
    powers: Mapping[tuple[str, int, int], int]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.over_sizes, self.size)

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tensor for tensor, _, _ in self.powers))

    def identity(self) -> Tensor:
        return torch.ones(self.shape, dtype=torch.float64)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Signs by fair coins; log-scales uniform in ±0.7."""
        draw = torch.rand(self.shape, generator=generator, dtype=torch.float64)
        return (draw < 0.5) * 2.0 - 1.0 if self.kind == SIGN else torch.exp((2 * draw - 1) * RANGE)

    def told_of(self, stacks: Mapping[str, tuple[str, ...]]) -> Scaling:
        """The same scaling where a stack goes by the name of its first tensor."""
        powers = {(stacks.get(tensor, (tensor,))[0], axis, number): p for (tensor, axis, number), p in self.powers.items()}
        return replace(self, powers=powers)

    def to_json(self) -> dict[str, Any]:
        out = {key: getattr(self, key) for key in ("factor", "kind", "size", "over", "over_sizes")}
        return out | {"powers": [[*leaf, power] for leaf, power in self.powers.items()]}

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> Scaling:
        powers = {(tensor, axis, number): power for tensor, axis, number, power in data["powers"]}
        return cls(name, data["factor"], data["kind"], data["size"], tuple(data["over"]), tuple(data["over_sizes"]), powers)


def scaled(tensor: Tensor, layouts: Iterable[Layout], name: str, scalings: Iterable[tuple[Scaling, Tensor]]) -> Tensor:
    """A copy of ``tensor``, the piece ``name``, multiplied by its scalings (values: float64, of each scaling's shape)."""
    out = tensor.clone()
    layouts = tuple(layouts)
    for scaling, values in scalings:
        for _, block, axis, power in scaled_axes(out, layouts, name, scaling):
            block.view.mul_(along(block, axis, scaling, values.to(out.device, out.dtype) ** power))
    return out


def scaled_axes(tensor: Tensor, layouts: Iterable[Layout], name: str, scaling: Scaling) -> Iterable[tuple[int, Block, int, int]]:
    """(number of the block, block, axis of it, power) for every leaf of the piece ``name`` that takes the scaling.

    Blocks share the tensor's memory, and are those of ``layout.blocks`` in the same order for every scaling.
    """
    own = {(axis, number): power for (piece, axis, number), power in scaling.powers.items() if piece == name and power}
    if own:
        for place, block, d, number in leaf_blocks(tensor, layouts, scaling.factor):
            if (block.origin[d], number) in own:
                yield place, block, d, own[block.origin[d], number]


def leaf_blocks(tensor: Tensor, layouts: Iterable[Layout], factor: str) -> Iterator[tuple[int, Block, int, int]]:
    """(number of the block, block, axis of it, number of the leaf in the tensor's axis) for every leaf of ``factor``."""
    numbered = [_numbered(layout, factor, {}) for layout in layouts]
    for place, block in enumerate(blocks(tensor, numbered)):
        plain = replace(block, labels=tuple(None if label is None else label.partition("\0")[0] for label in block.labels))
        for d, label in enumerate(block.labels):
            name, _, number = (label or "").partition("\0")
            if name == factor:
                yield place, plain, d, int(number)


def along(block: Block, axis: int, scaling: Scaling, values: Tensor) -> Tensor:
    """``values`` with axes where the block has those of the scaling, and size 1 elsewhere."""
    dims = [*(block.coordinate_of(axis, outer) for outer in scaling.over), axis]
    shape = [1] * block.view.dim()
    for position, dim in enumerate(dims):
        shape[dim] = values.shape[position]
    return values.permute(*sorted(range(len(dims)), key=dims.__getitem__)).reshape(shape)


def _numbered(layout: Layout, factor: str, count: dict[str, int]) -> Layout:
    """The layout in which every leaf of ``factor`` carries its number after a NUL."""
    if isinstance(layout, Leaf):
        if layout.factor != factor:
            return layout
        count[factor] = count.get(factor, -1) + 1
        return Leaf(f"{factor}\0{count[factor]}", layout.size)
    if isinstance(layout, Product):
        return Product(tuple(_numbered(child, factor, count) for child in layout.children))
    return Sum(tuple(_numbered(part, factor, count) for part in layout.parts))
