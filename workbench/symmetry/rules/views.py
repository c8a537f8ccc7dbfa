"""Views: entries change place. A reshape is split into the smallest stretches of axes with equal products of sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from workbench.symmetry.pointers import ALONG, Pointer, reordered, reshaped, shifted, taken
from workbench.symmetry.records import DeferredView, TensorType
from workbench.symmetry.rules import NoRule, rule
from workbench.symmetry.trees import ONE, Tree, pin, pinned, product, split_product, split_sum, uniform, unify


def segments(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Ranges of old and new axes that hold the same entries, as short as possible, in order; size-1 axes join a neighbour."""
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = i, j
        left = right = 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        yield range(a, i), range(b, j)


def reshape(walk, tensor: TensorType, shape: Sequence[int]) -> TensorType:
    """View ``tensor`` as ``shape``. Where an axis's structure does not allow a split, the whole stretch is pinned."""
    axes: list[Tree] = []
    keys_in: list[Any] = [None] * len(tensor.axes)
    keys_out: list[Any] = []
    why = walk.why(f"reshaped from {tensor.shape} to {tuple(shape)}")
    for number, (old, new) in enumerate(segments(tensor.shape, shape)):
        whole = product(tensor.axes[i] for i in old)
        pieces: list[Tree] = []
        rest = whole
        for size in [shape[j] for j in new][:-1]:
            cut = split_product(rest, size, why)
            if cut is None:
                pin(whole, why)
                pieces = [pinned(shape[j], why) for j in new]
                break
            pieces.append(cut[0])
            rest = cut[1]
        else:
            if len(new):
                pieces.append(rest)
        axes += pieces
        for i in old:
            keys_in[i] = ("segment", number)
        keys_out += [("segment", number)] * len(pieces)
    step = reshaped(list(segments(tensor.shape, shape)), tensor.shape, tuple(shape))
    return walk.move(tensor, tuple(keys_in), axes, tuple(keys_out), step=step)


@rule("view", "reshape", "_unsafe_view", "squeeze", "unsqueeze", "flatten", "unflatten", indices=True)
def view(walk, args: Any, kwargs: Any) -> Any:
    if walk.node.target._overloadname == "dtype":
        raise NoRule("a view as another dtype")
    return view_as(walk, args[0], walk.shape)


def view_as(walk, tensor: TensorType, shape: Sequence[int]) -> TensorType:
    """``reshape``, put off where it splits an axis, and where the tensor is itself put off and only axes of size 1 change."""
    if isinstance(tensor, DeferredView) and tensor.pending:
        wide = [place for place in tensor.order if tensor.view[place] > 1]
        if [tensor.view[place] for place in wide] == [size for size in shape if size > 1]:
            ones = itertools.count(len(tensor.view))
            rest = iter(wide)
            order = tuple(next(rest) if size > 1 else next(ones) for size in shape)
            view = (*tensor.view, *(1,) * sum(size == 1 for size in shape))
            return DeferredView(tensor.base, view, order, walk.node.name, lambda deferred: carry_out(walk, deferred))
        if tensor.order == tuple(range(len(tensor.view))):
            return view_as(walk, tensor.base, shape)  # a view of a view is a view
    if splits_an_axis(tensor.shape, shape):
        return defer(walk, tensor, shape)
    return reshape(walk, tensor, shape)


def defer(walk, tensor: TensorType, shape: Sequence[int]) -> DeferredView:
    return DeferredView(tensor, tuple(shape), tuple(range(len(shape))), walk.node.name, lambda deferred: carry_out(walk, deferred))


def splits_an_axis(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether one axis becomes several of size above 1."""
    return any(sum(old[i] > 1 for i in before) == 1 and sum(new[j] > 1 for j in after) > 1 for before, after in segments(old, new))


def carry_out(walk, deferred: DeferredView) -> TensorType:
    """The view, then the collected permutation; axes of size 1 that were dropped on the way are left out of the view."""
    kept = sorted(deferred.order)
    viewed = reshape(walk, deferred.base, [deferred.view[place] for place in kept])
    return reorder(walk, viewed, [kept.index(place) for place in deferred.order])


def part_of_view(walk, deferred: DeferredView, dim: int, start: int, stop: int) -> DeferredView | None:
    """Entries start…stop−1 along ``dim``, taken from the base where ``dim`` is a piece of one split axis, not the last; else None.

    What stands before ``dim`` is split off first: heads viewed as (heads, 3, inside) keep query, key and value apart.
    """
    place = deferred.order[dim]
    for old, new in segments(deferred.base.shape, deferred.view):
        wide = [i for i in old if deferred.base.shape[i] > 1]
        leading = next((j for j in new if deferred.view[j] > 1), None)
        if leading == place and len(wide) == 1:
            inner = deferred.base.shape[wide[0]] // deferred.view[place]
            part = take(walk, deferred.base, wide[0], start * inner, stop * inner)
            view = tuple(stop - start if j == place else size for j, size in enumerate(deferred.view))
            return DeferredView(part, view, deferred.order, walk.node.name, lambda later: carry_out(walk, later))
        inside = any(j > place and deferred.view[j] > 1 for j in new)
        if place in new and inside and deferred.view[place] > 1 and len(wide) == 1:
            outer = [deferred.view[j] for j in new if j < place]
            shape = deferred.base.shape
            rest = shape[wide[0]] // math.prod(outer)
            base = reshape(walk, deferred.base, (*shape[: wide[0]], *outer, rest, *shape[wide[0] + 1 :]))
            split = DeferredView(base, deferred.view, deferred.order, walk.node.name, lambda later: carry_out(walk, later))
            return part_of_view(walk, split, dim, start, stop)
    return None


def take(walk, tensor: TensorType, dim: int, start: int, stop: int) -> TensorType:
    """Entries start…stop−1 along ``dim``."""
    if isinstance(tensor, DeferredView) and tensor.pending:
        part = part_of_view(walk, tensor, dim, start, stop)
        if part is not None:
            return part
    if stop - start == 1 and len(tensor.axes) > 2 and tensor is walk.parameters.get(tensor.name):
        return _one_of_stack(walk, tensor, dim, start)
    tree = tensor.axes[dim]
    why = walk.why(f"entries {start} to {stop - 1} of {tree.size} are taken")
    if stop < tree.size:
        tree, _ = split_sum(tree, stop, why)
    if start > 0:
        _, tree = split_sum(tree, start, why)
    axes = list(tensor.axes)
    axes[dim] = tree
    keys = tuple(None if size == 1 else axis for axis, size in enumerate(tensor.shape))
    return walk.move(tensor, keys, axes, keys, step=taken(dim, start, stop, tensor.shape[dim]), cut=(dim, (start,)))


def _one_of_stack(walk, tensor: TensorType, dim: int, place: int) -> TensorType:
    """One matrix out of a parameter that stacks several: the stack is pinned, not cut, and the matrix knows its place in it.

    Hidden units may so depend on the place, as on an expert's number. Stacks of one height share one axis of places.
    """
    size = tensor.shape[dim]
    places = unify(tensor.axes[dim], walk.places_of(size), walk.why("places in a stack"))
    axes = [ONE if axis == dim else tree for axis, tree in enumerate(tensor.axes)]
    keys = tuple(None if axis == dim or tree is ONE else axis for axis, tree in enumerate(tensor.axes))
    made = walk.move(tensor, tuple(ALONG if axis == dim else key for axis, key in enumerate(keys)), axes, keys, cut=(dim, (place,)))
    made._virtual = (Pointer(places, ("place", place), (), frozenset(range(len(axes)))),)
    return made


def reorder(walk, tensor: TensorType, order: Sequence[int]) -> TensorType:
    """Result axis d is axis ``order[d]``."""
    return walk.move(tensor, tuple(range(len(order))), [tensor.axes[d] for d in order], tuple(order), step=reordered(order))


@rule("permute", "transpose", "t", "numpy_T", indices=True)
def permute(walk, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    rank = len(tensor.shape)
    if walk.op == "permute":
        order = [d % rank for d in args[1]]
    else:
        first, second = (args[1] % rank, args[2] % rank) if walk.op == "transpose" else (0, rank - 1)
        order = list(range(rank))
        order[first], order[second] = order[second], order[first]
    if isinstance(tensor, DeferredView) and tensor.pending:
        moved = tuple(tensor.order[d] for d in order)
        return DeferredView(tensor.base, tensor.view, moved, walk.node.name, lambda deferred: carry_out(walk, deferred))
    return reorder(walk, tensor, order)


@rule("expand", indices=True)
def expand(walk, args: Any, kwargs: Any) -> Any:
    """A new or stretched axis holds copies: the result is constant along it."""
    tensor, shape = args[0], walk.shape
    offset = len(shape) - len(tensor.axes)
    axes: list[Tree] = []
    keys: list[Any] = []
    for axis, size in enumerate(shape):
        own = axis - offset
        kept = own >= 0 and tensor.axes[own].size == size
        axes.append(tensor.axes[own] if kept else uniform(size))
        keys.append(own if kept and size > 1 else None)
    keys_in = tuple(i if tree is not ONE else None for i, tree in enumerate(tensor.axes))
    return walk.move(tensor, keys_in, axes, tuple(keys), step=shifted(offset))


@rule("repeat")
def repeat(walk, args: Any, kwargs: Any) -> Any:
    """Copies side by side: the copies are alike, the axis repeats inside."""
    tensor, counts = args[0], args[1]
    offset = len(counts) - len(tensor.axes)
    axes: list[Tree] = []
    keys: list[Any] = []
    for axis, count in enumerate(counts):
        own = axis - offset
        axes.append(product((uniform(count), tensor.axes[own])) if own >= 0 else uniform(count))
        keys.append(own if own >= 0 and tensor.axes[own] is not ONE else None)
    return walk.move(tensor, tuple(i if tree is not ONE else None for i, tree in enumerate(tensor.axes)), axes, tuple(keys))


@rule("full_like", "zeros_like", "ones_like", "new_zeros", "new_full", "new_ones", "scalar_tensor")
def filled(walk, args: Any, kwargs: Any) -> Any:
    """The operand gives only a shape; the result is constant along every axis."""
    shape = walk.shape
    return walk.loop_free([uniform(size) for size in shape])


@rule("as_strided")
def strided(walk, args: Any, kwargs: Any) -> Any:
    """Only where it is a view of all entries in row-major order, as some reductions leave behind."""
    tensor, shape, strides = args[:3]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    source = walk.node.args[0].meta["val"]
    row_major = torch.empty(shape, device="meta").stride()
    plain = all(a == b for a, b, n in zip(strides, row_major, shape, strict=True) if n > 1)
    if offset or not plain or not source.is_contiguous() or source.numel() != math.prod(shape):
        raise NoRule("entries are addressed in memory")
    return view_as(walk, tensor, shape)
