"""Leaves of axes, one by one: which leaf of one tensor is which leaf of another in a record.

An atom may stand in a tensor several times (both axes of a recurrent matrix, the gates of an LSTM), so what is asked of a *leaf*
needs more than its atom: the axis it is in, and which occurrence of the atom in that axis.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from workbench.symmetry.records import Deferred, Record, TensorType
from workbench.symmetry.trees import Atom, Cat, Prod, Reason, Tree, Uni, concatenation, normalise, product, unify

_AGAIN = Reason("the two run together")


class Mismatch(Exception):
    """Two axes that hold the same entries could not be laid beside one another."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """One occurrence of ``atom`` in axis ``axis`` of a tensor; number: which of its occurrences there, from the left."""

    atom: Atom
    axis: int
    number: int


class Leaves:
    """The axes of one tensor with a label in place of every atom."""

    def __init__(self, tensor: TensorType) -> None:
        self.of: dict[Atom, Leaf] = {}  # label -> leaf
        self.axes: list[Tree] = []
        for axis, tree in enumerate(tensor.axes):
            self._counts: dict[Atom, int] = {}
            self.axes.append(self._labelled(normalise(tree), axis))

    def _labelled(self, tree: Tree, axis: int) -> Tree:
        if isinstance(tree, Atom):
            number = self._counts.get(tree, 0)
            self._counts[tree] = number + 1
            label = Atom(tree.size)
            self.of[label] = Leaf(tree, axis, number)
            return label
        if isinstance(tree, Prod):
            return product(self._labelled(child, axis) for child in tree.children)
        if isinstance(tree, Cat):
            return concatenation(self._labelled(part, axis) for part in tree.parts)
        return tree

    def __iter__(self) -> Iterator[Leaf]:
        return iter(self.of.values())


def beside(a: Tree, b: Tree) -> Iterator[tuple[Atom, Atom | None]]:
    """Pairs of labels that stand at the same place of two axes of one size; None where ``b`` is constant there.

    ``a`` may be constant too; such places are left out. Raises Mismatch where the axes are laid out differently.
    """
    a, b = normalise(a), normalise(b)
    if a.size != b.size:
        raise Mismatch
    if isinstance(a, Uni) or a.size == 1:
        return
    if isinstance(b, Uni):
        yield from ((label, None) for label in _labels(a))
    elif isinstance(a, Atom) and isinstance(b, Atom):
        yield a, b
    elif isinstance(a, Prod) and isinstance(b, Prod):
        yield from _zip(list(a.children), list(b.children), product)
    elif isinstance(a, Cat) and isinstance(b, Cat):
        yield from _zip(list(a.parts), list(b.parts), concatenation)
    else:
        raise Mismatch


def _labels(tree: Tree) -> Iterator[Atom]:
    if isinstance(tree, Atom):
        yield tree
    elif not isinstance(tree, Uni):
        for child in tree.children if isinstance(tree, Prod) else tree.parts:
            yield from _labels(child)


def _zip(left: list[Tree], right: list[Tree], join: Callable[[list[Tree]], Tree]) -> Iterator[tuple[Atom, Atom | None]]:
    """Children pairwise; a constant stretch may face several of them."""
    i = j = 0
    while i < len(left) and j < len(right):
        x, y = left[i], right[j]
        i, j = i + 1, j + 1
        while x.size != y.size:
            if isinstance(y, Uni) and x.size < y.size and i < len(left):
                x, i = join([x, left[i]]), i + 1
            elif isinstance(x, Uni) and y.size < x.size and j < len(right):
                y, j = join([y, right[j]]), j + 1
            else:
                raise Mismatch
        yield from beside(x, y)
    if i < len(left) or j < len(right):
        raise Mismatch


def stretch(tree: Tree, start: int, length: int) -> Tree:
    """Entries start…start+length−1 of an axis that was cut there."""
    tree = normalise(tree)
    if start == 0 and length == tree.size:
        return tree
    if isinstance(tree, Uni):
        return Uni(length)
    parts, at = [], 0
    for part in tree.parts if isinstance(tree, Cat) else (tree,):
        if start <= at and at + part.size <= start + length:
            parts.append(part)
        elif isinstance(part, Uni):
            shared = min(at + part.size, start + length) - max(at, start)
            if shared > 0:
                parts.append(Uni(shared))
        elif at < start + length and at + part.size > start:
            raise Mismatch
        at += part.size
    return concatenation(parts)


def carried_out(tensor: TensorType) -> TensorType:
    """The tensor itself, or what a deferred one became."""
    while isinstance(tensor, Deferred) and not tensor.pending:
        tensor = tensor._carried_out()
    return tensor


def moved_leaves(record: Record, leaves: dict[TensorType, Leaves]) -> Iterator[tuple[int, Leaf | None, Leaf]]:
    """For a move: (operand, its leaf or None where it is constant, the leaf of the result that it became)."""
    result, result_keys = record.results[0]
    to = leaves[result]
    for number, (operand, keys) in enumerate(record.operands):
        of = leaves[operand]
        for key in dict.fromkeys(keys):
            if key is None:
                continue
            here = [axis for axis, k in enumerate(keys) if k == key]
            there = [axis for axis, k in enumerate(result_keys) if k == key]
            if not there:
                continue
            a, b = product(of.axes[axis] for axis in here), product(to.axes[axis] for axis in there)
            if record.cut is not None and here == [record.cut[0]]:
                start = record.cut[1][number]
                if a.size > b.size:
                    a = stretch(a, start, b.size)
                else:
                    b = stretch(b, start, a.size)
            elif record.op == "repeat" and a.size < b.size and b.size % a.size == 0:
                a = product((Uni(b.size // a.size), a))
            for one, other in beside(a, b):
                if other is None:
                    raise Mismatch
                yield number, of.of[one], to.of[other]
            yield from ((number, None, to.of[other]) for other, one in beside(b, a) if one is None)


Row = list[Leaf | None]


def looped_leaves(record: Record, leaves: dict[TensorType, Leaves]) -> Iterator[tuple[Hashable, Atom, Row, Row]]:
    """For a loop: (key, atom, its leaf in every operand, its leaf in every result), None where constant or without that loop."""
    merged: dict[Hashable, Tree] = {}
    for tensor, keys in record.operands:
        for axis, key in zip(tensor.axes, keys, strict=True):
            if key is not None:
                merged[key] = unify(merged[key], axis, _AGAIN) if key in merged else axis
    sides = [*record.operands, *record.results]
    for key, tree in merged.items():
        reference = Leaves(TensorType([tree]))
        rows: dict[Atom, list[Leaf | None]] = {label: [None] * len(sides) for label in reference.of}
        for place, (tensor, keys) in enumerate(sides):
            for axis, own in enumerate(keys):
                if own == key:
                    held = leaves[tensor]
                    for label, other in beside(reference.axes[0], held.axes[axis]):
                        rows[label][place] = None if other is None else held.of[other]
        for label, row in rows.items():
            count = len(record.operands)
            yield key, reference.of[label].atom, row[:count], row[count:]
