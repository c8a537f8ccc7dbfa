"""Look-ups and their inverse: indices that name units of a free axis move with it, any other index keeps the axis in order.

A look-up is a loop: table[…, i, …] at indices is Σ_i table[i] · [index = i]. Where the indices are pointers (made by top-k, sort or
arg-max out of a free axis) the loop over i runs with the axis they point into, and the result keeps a virtual coordinate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from workbench.symmetry.pointers import Pointer
from workbench.symmetry.records import TensorType
from workbench.symmetry.rules import NoRule, rule
from workbench.symmetry.rules.elementwise import broadcast_keys
from workbench.symmetry.rules.reduction import axis_keys
from workbench.symmetry.rules.views import take
from workbench.symmetry.trees import Tree, pin, pinned, unify


def pointed_axis(walk, table: TensorType, dim: int, index: TensorType, keys: tuple) -> Any:
    """The loop key of axis ``dim`` of a table that ``index`` (with loop ``keys``) looks into."""
    pointer = index.points
    if pointer is None:
        pin(table.axes[dim], walk.why("its entries are looked up by position"))
        return ("table", dim)
    unify(table.axes[dim], pointer.tree, walk.why("indices into the one look up the other"))
    return pointer.descriptor(keys)


def look_up(walk, table: TensorType, indices: dict[int, TensorType]) -> TensorType:
    """table[…, indices[d], …]: the result has the indices' broadcast axes where the first indexed axis was (or in front)."""
    walk.use_as_numbers(table)
    rank = max(len(index.axes) for index in indices.values())
    named = {
        d: tuple(None if k is None else ("index", k) for k in own)
        for d, own in zip(indices, broadcast_keys(list(indices.values()), rank), strict=True)
    }
    keys: list[Any] = [None if size == 1 else ("table", d) for d, size in enumerate(table.shape)]
    for d, index in indices.items():
        if table.shape[d] > 1:
            keys[d] = pointed_axis(walk, table, d, index, named[d])
    known = {key for own in named.values() for key in own}
    looked = tuple(("index", k) if ("index", k) in known else None for k in reversed(range(rank)))
    dims = sorted(indices)
    together = dims == list(range(dims[0], dims[-1] + 1))
    rest = [d for d in range(len(table.axes)) if d not in indices]
    before = [d for d in rest if together and d < dims[0]]
    after = [d for d in rest if d not in before]
    result = (*(keys[d] for d in before), *looked, *(keys[d] for d in after))
    made = walk.loop([(table, tuple(keys)), *((index, named[d]) for d, index in indices.items())], result)
    _remember(made, keys, result, [(index.points, named[d]) for d, index in indices.items() if table.shape[d] > 1])
    return made


def _remember(made: TensorType, table: Sequence[Any], result: tuple, pointers: list[tuple[Pointer | None, tuple]]) -> None:
    """Every entry of the result belongs to the one unit that it was looked up with; table, result: loop keys."""
    of = frozenset(axis for axis, key in enumerate(result) if key is not None and key in table)
    kept = [pointer.through(keys, result) for pointer, keys in pointers if pointer is not None]
    made._virtual = (*made.virtual, *(replace(pointer, of=of) for pointer in kept if pointer is not None))


@rule("embedding", indices=True)
def embedding(walk, args: Any, kwargs: Any) -> Any:
    return look_up(walk, args[0], {0: args[1]})


@rule("_embedding_bag_forward_only", "_embedding_bag")
def embedding_bag(walk, args: Any, kwargs: Any) -> Any:
    """The sum, mean or maximum of the looked-up rows of every bag: rows keep their order, and entries of a row run along."""
    if any(user.args[1] != 0 and user.users for user in walk.node.users):
        raise NoRule("the places of the maxima are used")
    table, *others = (leaf for leaf in args if isinstance(leaf, TensorType))
    why = walk.why("bags of rows are looked up")
    for axis in (table.axes[0], *(axis for other in others for axis in other.axes)):
        pin(axis, why)
    operands = [(table, ("row", "entry")), *((other, (None,) * len(other.axes)) for other in others)]
    made = walk.loop(operands, (None, "entry"))
    shapes = [tuple(value.shape) for value in walk.node.meta["val"]]
    made.axes[0] = pinned(shapes[0][0], why)
    return made, *(TensorType([pinned(size, why) for size in shape], walk.node.name) for shape in shapes[1:])


@rule("index_select", indices=True)
def index_select(walk, args: Any, kwargs: Any) -> Any:
    table, dim, index = args[:3]
    return look_up(walk, table, {dim % len(table.axes): index})


@rule("index", indices=True)
def index(walk, args: Any, kwargs: Any) -> Any:
    table, places = args[:2]
    indices = {d: i for d, i in enumerate(places) if i is not None}
    values = [node.meta["val"] for node in walk.node.args[1] if node is not None]
    if any(value.dtype in (torch.bool, torch.uint8) for value in values):
        raise NoRule("a mask selects entries")
    if len(indices) == 1:
        ((dim, places),) = indices.items()
        start = _run_of(places, table.shape[dim])
        if start is not None:
            return take(walk, table, dim, start, start + places.shape[0])
    return look_up(walk, table, indices)


def _run_of(places: TensorType, size: int) -> int | None:
    """Where constant places a, a + 1, … begin: looking them up is a slice."""
    value = places.value
    if value is None or value.is_meta or value.dim() != 1 or value.numel() == 0:
        return None
    wrapped = value.to(torch.int64) % size
    run = torch.arange(len(wrapped), device=wrapped.device) + wrapped[0]
    return int(wrapped[0]) if torch.equal(wrapped, run) else None


def _along(walk, table: TensorType, dim: int, index: TensorType) -> tuple[tuple, tuple]:
    """Loop keys of a table and of indices of the same rank that point along ``dim`` and run with the table elsewhere."""
    if any(table.shape[d] != index.shape[d] for d in range(len(table.axes)) if d != dim):
        raise NoRule("the indices cover a part of the table only")
    own = tuple(None if key is None else ("index", key) if axis == dim else key for axis, key in enumerate(axis_keys(index)))
    place = pointed_axis(walk, table, dim, index, own) if table.shape[dim] > 1 else None
    return tuple(place if d == dim else own[d] for d in range(len(table.axes))), own


@rule("gather", indices=True)
def gather(walk, args: Any, kwargs: Any) -> Any:
    """out[…, r, …] = table[…, index[…, r, …], …]"""
    table, dim, index = args[:3]
    dim %= len(table.axes)
    walk.use_as_numbers(table)
    keys, own = _along(walk, table, dim, index)
    made = walk.loop([(table, keys), (index, own)], own)
    if table.shape[dim] > 1:
        _remember(made, keys, own, [(index.points, own)])
    return made


@rule("scatter", "scatter_add", "scatter_reduce", indices=True)
def scatter(walk, args: Any, kwargs: Any) -> Any:
    """out = table, where out[…, index[…, r, …], …] gets (or adds) source[…, r, …]; the axis written to is the one pointed into."""
    table, dim, index, *rest = args
    dim %= len(table.axes)
    source = next((value for value in (*rest, *kwargs.values()) if isinstance(value, TensorType)), None)
    if source is not None and source.shape != index.shape:
        raise NoRule("the indices cover a part of the source only")
    for tensor in (table, source):
        if tensor is not None:
            walk.use_as_numbers(tensor)
    size = table.shape[dim]
    target: Tree
    if index.points is None:
        pin(table.axes[dim], walk.why("its entries are written by position"))
        target = pinned(size, walk.why("its entries are written by position"))
    else:
        target = index.points.tree
    keys, own = _along(walk, table, dim, index)
    operands = [(table, keys), (index, own), (TensorType([target], "positions written to"), (keys[dim],))]
    if source is not None:
        operands.append((source, own))
    return walk.loop(operands, keys)
