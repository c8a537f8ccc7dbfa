"""Sorted dispatch: rows are sorted by the expert they were sent to, each expert works on its stretch, and the rows are put back.

Relabelling the experts changes the order of the sorted rows, by a permutation that depends on the data. Their axis is therefore a
loop of its own, "the sorted rows", which may run through anything that treats rows alike, and is undone by the look-up that
puts the rows back. If anything else asks for its order, the experts themselves are pinned (see ``Interpreter.settle``). Where the
stretches end is a running count over the experts; it is put off, because the product over the stretches may read it in any order
of the experts and every other use pins them.
"""

from __future__ import annotations

from typing import Any

import torch

from workbench.symmetry.pointers import Pointer, pointing
from workbench.symmetry.records import Deferred, TensorType
from workbench.symmetry.rules import NoRule, rule
from workbench.symmetry.trees import Atom, fresh, normalise, pin, pinned, unify


class Counts(TensorType):
    """How many rows each expert got: one axis, the one that ``rows`` point into."""

    rows: Pointer


class Ends(Deferred):
    """Where the stretch of each expert ends: the running sum of ``base``, which are ``Counts``."""

    base: Counts

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape


def sort_rows(walk, tensor: TensorType) -> tuple[TensorType, TensorType]:
    """Sorted indices and the order that sorts them, for indices along one axis."""
    pointer = tensor.points
    rows = fresh(tensor.shape[0])
    pin(tensor.axes[0], walk.why("rows are numbered"))
    operands, keys = [(tensor, ("row",))], (None,)
    values, order = walk.loop(operands, keys, keys)
    for made in (values, order):
        made.axes[0] = rows
    values._points = Pointer(pointer.tree, ("sorted", pointer.token), pointing(rows, None, tensor.shape).digits)
    walk.sorted_rows.append((rows, pointer))
    walk.orders[order] = rows
    return values, order


@rule("histc", indices=True)
def count(walk, args: Any, kwargs: Any) -> Any:
    """How often each index occurs."""
    tensor, bins, low, high = (*args, *(100, 0, 0)[len(args) - 1 :])
    pointer = tensor.points
    if pointer is None:
        raise NoRule("a histogram of values that are no indices")
    if len(tensor.axes) != 1 or (bins, low, high) != (pointer.tree.size, 0, pointer.tree.size - 1):
        raise NoRule("a histogram with other bins than one for each index")
    made = walk.loop([(tensor, ("row",)), (TensorType([pointer.tree], "indices that are counted"), ("which",))], ("which",))
    counts = Counts(made.axes, made.name)
    counts.rows = pointer
    walk.records.append(walk.renamed(made, counts))
    return counts


def running_count(walk, counts: Counts) -> Ends:
    """The running sum of counts, put off."""

    def force(ends: Ends) -> TensorType:
        why = walk.why("entries are summed in order")
        pin(counts.axes[0], why)
        made = walk.loop([(counts, ("which",))], (None,))
        made.axes[0] = pinned(counts.shape[0], why)
        return made

    return Ends(counts, walk.node.name, force)


@rule("_grouped_mm", "grouped_mm", "grouped_mm_fallback")
def grouped_product(walk, args: Any, kwargs: Any) -> Any:
    """out[r, j] = Σ_i x[r, i] · w[expert of row r, i, j]: rows sorted by expert, ``offs`` saying where each expert's rows end."""
    x, w = args[:2]
    ends = kwargs.get("offs", args[2] if len(args) > 2 else None)
    if not isinstance(ends, Ends) or not ends.pending or len(x.axes) != 2 or len(w.axes) != 3:
        raise NoRule("without the running count of sorted indices")
    pointer, row = ends.base.rows, normalise(x.axes[0])
    token = pointer.token[1] if isinstance(pointer.token, tuple) and pointer.token[0] == "sorted" else pointer.token
    if not any(normalise(tree) is row and sorted_by.token == token for tree, sorted_by in walk.sorted_rows):
        raise NoRule("on rows that were not sorted by those indices")
    unify(w.axes[0], pointer.tree, walk.why("each expert works on its rows"))
    looked = Pointer(pointer.tree, ("sorted", token), pointing(row, None, x.shape[:1]).digits, frozenset({1}))
    expert = looked.descriptor(("row",))
    made = walk.loop([(x, ("row", "i")), (w, (expert, "i", "j"))], ("row", "j"))
    made._virtual = (*made.virtual, looked)
    return made


@rule("index_put", indices=True)
def write(walk, args: Any, kwargs: Any) -> Any:
    """The order that puts sorted rows back: 0…n−1 written at the places the sort took them from. Any other writing has no rule."""
    table, places, values = args[:3]
    index = places[0]
    rows = walk.orders.get(index) if len(places) == 1 and index is not None else None
    size = table.shape[0]
    whole = len(table.axes) == 1 and isinstance(rows, Atom) and rows.size == size
    if not whole or values.value is None or not torch.equal(values.value.cpu(), torch.arange(size)):
        raise NoRule("entries are written at places of their own")
    return _order_back(walk, index, rows)


def _order_back(walk, order: TensorType, rows: Atom) -> TensorType:
    made = walk.loop([(order, ("row",))], (None,))
    made.axes[0] = pinned(rows.size, walk.why("rows are numbered"))
    return walk.point(made, rows)


def sort_order(walk, order: TensorType) -> tuple[TensorType, TensorType]:
    """Sorting an order gives 0…n−1, and the order that puts the sorted rows back."""
    back = _order_back(walk, order, walk.orders[order])
    numbers = walk.loop([(order, ("row",))], (None,))
    numbers.axes[0] = pinned(order.shape[0], walk.why("rows are numbered"))
    return numbers, back


@rule("empty", "empty_permuted", "empty_like", "new_empty", "empty_strided")
def empty(walk, args: Any, kwargs: Any) -> Any:
    """Memory whose values nobody may ask for."""
    return walk.loop_free([pinned(size, walk.why("memory without values")) for size in walk.shape])
