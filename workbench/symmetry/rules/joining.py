"""Concatenation and its inverse: an axis becomes a sum of axes, and a slice takes parts of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from workbench.symmetry.pointers import pointing
from workbench.symmetry.records import TensorType
from workbench.symmetry.rules import NoRule, rule
from workbench.symmetry.rules.reduction import axis_keys
from workbench.symmetry.rules.views import expand, reshape, take, view_as
from workbench.symmetry.trees import Tree, Uni, concatenation, pin, pinned, uniform, unify


@rule("cat", indices=True)
def cat(walk, args: Any, kwargs: Any) -> Any:
    tensors = [t for t in args[0] if t.shape != (0,)]
    rank = len(tensors[0].shape)
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % rank
    tensors = [t for t in tensors if t.shape[dim] > 0] or tensors[:1]
    return side_by_side(walk, tensors, dim)


def side_by_side(walk, tensors: Sequence[TensorType], dim: int) -> TensorType:
    """The tensors in order along ``dim``; all their other axes run together."""
    rank = len(tensors[0].axes)
    why = walk.why("concatenated side by side")
    axes: list[Tree] = list(tensors[0].axes)
    for tensor in tensors[1:]:
        axes = [a if axis == dim else unify(a, tensor.axes[axis], why) for axis, a in enumerate(axes)]
    axes[dim] = concatenation(tensor.axes[dim] for tensor in tensors)
    keys = tuple(range(rank))
    starts = itertools.accumulate((tensor.shape[dim] for tensor in tensors[:-1]), initial=0)
    pointers = [tensor.points for tensor in tensors]
    points = None
    if all(pointer is not None for pointer in pointers):
        for pointer in pointers[1:]:
            unify(pointers[0].tree, pointer.tree, walk.why("indices into the two stand side by side"))
        shape = (*tensors[0].shape[:dim], sum(tensor.shape[dim] for tensor in tensors), *tensors[0].shape[dim + 1 :])
        points = pointing(pointers[0].tree, ("joined", dim, *(pointer.token for pointer in pointers)), shape)
    return walk.join([(tensor, keys) for tensor in tensors], axes, keys, (dim, tuple(starts)), points=points)


@rule("slice", indices=True)
def slice_(walk, args: Any, kwargs: Any) -> Any:
    tensor, dim, start, stop, step = (*args, *(0, None, None, 1)[len(args) - 1 :])
    dim %= len(tensor.shape)
    size = tensor.shape[dim]
    start, stop, step = slice(start, stop, step).indices(size)
    if stop <= start:
        return nothing_of(walk, tensor, dim)
    if step != 1:
        return every(walk, tensor, dim, start, stop, step)
    return take(walk, tensor, dim, start, stop)


def nothing_of(walk, tensor: TensorType, dim: int) -> TensorType:
    """An empty slice: the axis has no entries, the others stay."""
    axes = [Uni(0) if axis == dim else tree for axis, tree in enumerate(tensor.axes)]
    keys = tuple(None if axis == dim else key for axis, key in enumerate(axis_keys(tensor)))
    return walk.move(tensor, keys, axes, keys)


def every(walk, tensor: TensorType, dim: int, start: int, stop: int, step: int) -> TensorType:
    """Entries start, start + step, …: one of each row where the axis is viewed as rows of ``step``; else the axis keeps its order.

    So rows may still be permuted: interleaved halves (gate and value, the two parts of a rotated pair) move together.
    """
    size, shape = tensor.shape[dim], walk.shape
    if size % step == 0 and shape[dim] == size // step:
        rows = reshape(walk, tensor, (*tensor.shape[:dim], size // step, step, *tensor.shape[dim + 1 :]))
        return reshape(walk, take(walk, rows, dim + 1, start, start + 1), shape)
    why = walk.why(f"every {step}th entry is taken, and {size} is no multiple")
    pin(tensor.axes[dim], why)
    keys = axis_keys(tensor)
    made = walk.loop([(tensor, keys)], tuple(None if axis == dim else key for axis, key in enumerate(keys)))
    made.axes[dim] = pinned(shape[dim], why)
    return made


@rule("select", indices=True)
def select(walk, args: Any, kwargs: Any) -> Any:
    tensor, dim, index = args[:3]
    dim %= len(tensor.shape)
    index %= tensor.shape[dim]
    return view_as(walk, take(walk, tensor, dim, index, index + 1), walk.shape)


@rule("split", "split_with_sizes", "chunk", indices=True)
def split(walk, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    dim = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % len(tensor.shape)
    start, out = 0, []
    for value in walk.node.meta["val"]:
        out.append(take(walk, tensor, dim, start, start + value.shape[dim]))
        start += value.shape[dim]
    return tuple(out)


@rule("constant_pad_nd")
def pad(walk, args: Any, kwargs: Any) -> Any:
    """Fixed stretches beside an axis; a negative amount takes entries away. The padding is constant, so it has no order."""
    tensor, amounts = args[:2]
    value = args[2] if len(args) > 2 else 0
    for i in range(0, len(amounts), 2):
        dim = len(tensor.shape) - 1 - i // 2
        before, after = amounts[i : i + 2]
        size = tensor.shape[dim]
        if before < 0 or after < 0:
            tensor = take(walk, tensor, dim, max(0, -before), size + min(0, after))
        if before > 0 or after > 0:
            tensor = _padded(walk, tensor, dim, max(0, before), max(0, after), value)
    return tensor


def _padded(walk, tensor: TensorType, dim: int, before: int, after: int, value: float) -> TensorType:
    if value != 0:
        # Zeros go with any other entries; another number is an operand of its own, or a rescaled tensor would seem to rescale it.
        shapes = [(*tensor.shape[:dim], count, *tensor.shape[dim + 1 :]) for count in (before, after)]
        left, right = ([walk.loop_free([uniform(n) for n in shape])] if shape[dim] else [] for shape in shapes)
        return side_by_side(walk, [*left, tensor, *right], dim)
    axes = list(tensor.axes)
    axes[dim] = concatenation(tree for tree in (uniform(before), axes[dim], uniform(after)) if tree.size)
    keys = tuple(range(len(axes)))
    return walk.join([(tensor, keys)], axes, keys, (dim, (before,)))


@rule("slice_scatter")
def slice_scatter(walk, args: Any, kwargs: Any) -> Any:
    """The tensor with a stretch replaced: what comes before, the new stretch, what comes after."""
    tensor, source, dim, start, stop, step = (*args, *(0, None, None, 1)[len(args) - 2 :])
    dim %= len(tensor.shape)
    start, stop, step = slice(start, stop, step).indices(tensor.shape[dim])
    if stop <= start:
        return tensor
    if step != 1:
        size, shape = tensor.shape[dim], tensor.shape
        if size % step or source.shape[dim] != size // step:
            raise NoRule(f"step {step}, and {size} is no multiple")
        rows = reshape(walk, tensor, (*shape[:dim], size // step, step, *shape[dim + 1 :]))
        column = view_as(walk, source, (*shape[:dim], size // step, 1, *shape[dim + 1 :]))
        return reshape(walk, _replaced(walk, rows, column, dim + 1, start, start + 1), shape)
    return _replaced(walk, tensor, source, dim, start, stop)


@rule("select_scatter")
def select_scatter(walk, args: Any, kwargs: Any) -> Any:
    tensor, source, dim, index = args[:4]
    dim %= len(tensor.shape)
    index %= tensor.shape[dim]
    source = view_as(walk, source, (*tensor.shape[:dim], 1, *tensor.shape[dim + 1 :]))
    return _replaced(walk, tensor, source, dim, index, index + 1)


def _replaced(walk, tensor: TensorType, source: TensorType, dim: int, start: int, stop: int) -> TensorType:
    size = tensor.shape[dim]
    before = [take(walk, tensor, dim, 0, start)] if start else []
    after = [take(walk, tensor, dim, stop, size)] if stop < size else []
    return side_by_side(walk, [*before, source, *after], dim)


@rule("copy")
def copy(walk, args: Any, kwargs: Any) -> Any:
    """The source in the shape of the tensor it overwrites, of which nothing is left."""
    return expand(walk, args[1:2], kwargs)
