"""Layouts: which factors make up one axis of a tensor, and in what order its entries are laid.

An axis is a *leaf* (one factor, or a fixed stretch), a *product* (row-major, the leftmost factor slowest: a flattened C·H·W axis
is ``Product(C, H·W)``) or a *sum* (concatenation in order). ``blocks`` cuts a tensor along its layouts into views whose every
axis is a single leaf; applying an element and building a matching cost both work on those views and need no other case.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Leaf:
    """``size`` entries moved by ``factor``; ``factor=None`` means fixed. A name that begins with "=" is a fixed coordinate."""

    factor: str | None
    size: int


@dataclass(frozen=True)
class Product:
    children: tuple[Layout, ...]

    @property
    def size(self) -> int:
        return math.prod(child.size for child in self.children)


@dataclass(frozen=True)
class Sum:
    parts: tuple[Layout, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


Layout = Leaf | Product | Sum


def factors(layout: Layout) -> Iterator[str]:
    """Names of the factors in ``layout``, in order, with repetitions (fixed stretches are left out)."""
    if isinstance(layout, Leaf):
        if layout.factor is not None:
            yield layout.factor
    else:
        for child in layout.children if isinstance(layout, Product) else layout.parts:
            yield from factors(child)


def movable(layout: Layout) -> bool:
    """Whether some factor moves entries of this axis."""
    return any(not name.startswith("=") for name in factors(layout))


def strip_factor(layout: Layout, names: Collection[str]) -> Layout:
    """The layout in which the factors ``names`` do not move."""
    if isinstance(layout, Leaf):
        return Leaf(None, layout.size) if layout.factor in names else layout
    if isinstance(layout, Product):
        return Product(tuple(strip_factor(child, names) for child in layout.children))
    return Sum(tuple(strip_factor(part, names) for part in layout.parts))


@dataclass(frozen=True)
class Block:
    """A view of a tensor in which axis ``d`` is the single leaf ``labels[d]`` (None: fixed), cut from tensor axis ``origin[d]``."""

    view: Tensor
    labels: tuple[str | None, ...]
    origin: tuple[int, ...]

    def coordinate_of(self, axis: int, factor: str) -> int:
        """The block axis that says which copy of a dependent factor is meant: in the same tensor axis, else elsewhere."""
        found = [d for d, label in enumerate(self.labels) if label == factor]
        near = [d for d in found if self.origin[d] == self.origin[axis]]
        return (near or found)[0]


def blocks(tensor: Tensor, layouts: Sequence[Layout]) -> Iterator[Block]:
    """Cut ``tensor`` into views with one leaf per axis. Together the views cover every entry exactly once.

    tensor: one axis per layout; layouts: sizes must match the shape. The views share the tensor's memory.
    """
    yield from _cut(tensor, tuple(layouts), tuple(range(tensor.dim())))


def _cut(tensor: Tensor, layouts: tuple[Layout, ...], origin: tuple[int, ...]) -> Iterator[Block]:
    for d, layout in enumerate(layouts):
        before, after = layouts[:d], layouts[d + 1 :]
        if isinstance(layout, Product):
            view = tensor.unflatten(d, [child.size for child in layout.children])
            spread = (*origin[:d], *[origin[d]] * len(layout.children), *origin[d + 1 :])
            yield from _cut(view, (*before, *layout.children, *after), spread)
            return
        if isinstance(layout, Sum):
            start = 0
            for part in layout.parts:
                yield from _cut(tensor.narrow(d, start, part.size), (*before, part, *after), origin)
                start += part.size
            return
    yield Block(tensor, tuple(layout.factor for layout in layouts), origin)


def to_json(layout: Layout) -> Any:
    """``"name"`` with its size, a number for a fixed stretch, ``{"product": [...]}``, ``{"sum": [...]}``."""
    if isinstance(layout, Leaf):
        return layout.size if layout.factor is None else [layout.factor, layout.size]
    if isinstance(layout, Product):
        return {"product": [to_json(child) for child in layout.children]}
    return {"sum": [to_json(part) for part in layout.parts]}


def from_json(data: Any) -> Layout:
    """The inverse of ``to_json``."""
    if isinstance(data, int):
        return Leaf(None, data)
    if isinstance(data, list):
        return Leaf(data[0], data[1])
    if "product" in data:
        return Product(tuple(from_json(child) for child in data["product"]))
    return Sum(tuple(from_json(part) for part in data["sum"]))


def coordinate(name: str) -> str:
    """The factor called ``name`` in words: a fixed coordinate has no name of its own."""
    return "a fixed axis" if name.startswith("=") else name


def describe(layout: Layout) -> str:
    """``conv1``, ``conv2 × 25``, ``a ⊕ b``: how an axis reads in a table."""
    if isinstance(layout, Leaf):
        return str(layout.size) if layout.factor is None or layout.factor.startswith("=") else layout.factor
    if isinstance(layout, Product):
        return " × ".join(f"({describe(c)})" if isinstance(c, Sum) else describe(c) for c in layout.children)
    return " ⊕ ".join(describe(part) for part in layout.parts)
