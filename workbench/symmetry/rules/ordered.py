"""Operations along an axis whose result depends on the order of entries, or that replace it by an order of their own."""

from __future__ import annotations

from typing import Any

from workbench.symmetry.rules import rule
from workbench.symmetry.rules.dispatch import Counts, running_count, sort_order, sort_rows
from workbench.symmetry.rules.reduction import axis_keys, reduce_axes
from workbench.symmetry.trees import pin, pinned


def reordered(walk, tensor: Any, dims: Any, reason: Any, *, results: int = 1) -> Any:
    """Results like ``tensor`` in which the axes ``dims`` are new and fixed; all other axes run along."""
    gone = {dim % len(tensor.axes) for dim in dims} if tensor.axes else set()
    keys = axis_keys(tensor)
    kept = tuple(None if axis in gone else key for axis, key in enumerate(keys))
    made = walk.loop([(tensor, keys)], *[kept] * results)
    for result in made if isinstance(made, tuple) else (made,):
        for axis in gone:
            result.axes[axis] = pinned(tensor.axes[axis].size, reason)
    return made


@rule("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "flip", "roll")
def positional(walk, args: Any, kwargs: Any) -> Any:
    """Entries are summed, turned or shifted in order: the axis is pinned, and the result's is a new fixed one.

    A new one, because the operand may be constant along the axis, and its running sum is not.
    """
    tensor = args[0]
    if walk.op == "cumsum" and isinstance(tensor, Counts):
        return running_count(walk, tensor)
    dims = args[2] if walk.op == "roll" and len(args) > 2 else args[1]
    if walk.op == "roll" and len(args) < 3:
        dims = range(len(tensor.axes))
    dims = [dims] if isinstance(dims, int) else list(dims)
    why = walk.why("entries are taken in order")
    for dim in dims:
        pin(tensor.axes[dim], why)
    return reordered(walk, tensor, dims, why, results=2 if walk.op in ("cummax", "cummin") else 1)


@rule("argmax", "argmin")
def position_of_extreme(walk, args: Any, kwargs: Any) -> Any:
    """The result names a position along the axis; over a whole tensor it names one of the flattened entries, which are ordered."""
    tensor = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if dim is None:
        for axis in tensor.axes:
            pin(axis, walk.why("positions along the axis are named"))
        return reduce_axes(walk, tensor, range(len(tensor.axes)), keepdim=len(walk.shape) == len(tensor.axes) > 0)
    keepdim = len(walk.shape) == len(tensor.axes) > 0
    return walk.point(reduce_axes(walk, tensor, [dim], keepdim=keepdim), tensor.axes[dim])


@rule("sort", "topk", indices=True)
def sorting(walk, args: Any, kwargs: Any) -> Any:
    """Sorted values do not depend on the order they came in; the indices point into the axis."""
    tensor = args[0]
    position = {"topk": 2, "sort": 1}[walk.op]
    dim = kwargs.get("dim", args[position] if len(args) > position and isinstance(args[position], int) else -1)
    dim %= len(tensor.axes)
    if walk.op == "sort" and len(tensor.axes) == 1 and not _descending(args, kwargs):
        if tensor in walk.orders:
            return sort_order(walk, tensor)
        if tensor.points is not None:
            return sort_rows(walk, tensor)
    walk.use_as_numbers(tensor)
    why = walk.why("ranks are ordered")
    values, indices = reordered(walk, tensor, [dim], why, results=2)
    for result in (values, indices):
        result.axes[dim] = pinned(walk.shape[dim], why)
    if any(len(user.args) > 1 and user.args[1] == 1 and user.users for user in walk.node.users):
        walk.point(indices, tensor.axes[dim])
    return values, indices


def _descending(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("descending", args[2] if len(args) > 2 else False))
