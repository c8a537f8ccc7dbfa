"""Where a factor stands: every leaf of every tensor by itself, and the layout in which that one leaf stays behind.

A packed projection holds a factor several times in one axis (the query's rows and the key's): leaving the tensor out as a whole
would not tell whether each of the places has to move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from workbench.symmetry.entries import Stack
from workbench.symmetry.group import Symmetry
from workbench.symmetry.layout import Layout, Leaf, Product, Sum


@dataclass(frozen=True)
class Occurrence:
    """One leaf of ``factor``, in entries start…stop−1 of ``axis`` of ``piece``; ``rest``: the piece with that leaf fixed."""

    factor: str
    piece: Stack
    axis: int
    start: int
    stop: int
    rest: Stack

    @property
    def tensor(self) -> str:
        return self.piece.names[0]


def occurrences(symmetry: Symmetry) -> dict[str, list[Occurrence]]:
    """Factor -> its leaves, over all pieces (tied names once), in the order of the state dict."""
    found: dict[str, list[Occurrence]] = {name: [] for name in symmetry.groups}
    for piece in symmetry.pieces():
        for axis, layout in enumerate(piece.layouts):
            for factor, rest, start, stop in _leaves(layout):
                if factor in found:
                    layouts = (*piece.layouts[:axis], rest, *piece.layouts[axis + 1 :])
                    found[factor].append(Occurrence(factor, piece, axis, start, stop, replace(piece, layouts=layouts)))
    return found


def _leaves(layout: Layout) -> Iterator[tuple[str, Layout, int, int]]:
    """(factor, the layout with this leaf fixed, start, stop); below a product the leaf is spread over the whole product."""
    if isinstance(layout, Leaf):
        if layout.factor is not None:
            yield layout.factor, Leaf(None, layout.size), 0, layout.size
        return
    parts = layout.children if isinstance(layout, Product) else layout.parts
    offset = 0
    for number, part in enumerate(parts):
        for factor, rest, start, stop in _leaves(part):
            changed = (*parts[:number], rest, *parts[number + 1 :])
            if isinstance(layout, Sum):
                yield factor, Sum(changed), offset + start, offset + stop
            else:
                yield factor, Product(changed), 0, layout.size
        offset += part.size
