"""Concatenation and its inverse: an axis becomes a sum of axes, and a slice takes parts of it."""

from __future__ import annotations

from typing import Any

from workbench.symmetry.rules import NoRule, rule
from workbench.symmetry.rules.reduction import axis_keys
from workbench.symmetry.rules.views import take, view_as
from workbench.symmetry.trees import Tree, concatenation, pin, pinned, unify


@rule("cat")
def cat(walk, args: Any, kwargs: Any) -> Any:
    tensors = [t for t in args[0] if t.shape != (0,)]
    rank = len(tensors[0].axes)
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % rank
    why = walk.why("concatenated side by side")
    axes: list[Tree] = list(tensors[0].axes)
    for tensor in tensors[1:]:
        axes = [a if axis == dim else unify(a, tensor.axes[axis], why) for axis, a in enumerate(axes)]
    axes[dim] = concatenation(tensor.axes[dim] for tensor in tensors)
    keys = tuple(range(rank))
    return walk.join([(tensor, keys) for tensor in tensors], axes, keys)


@rule("slice", indices=True)
def slice_(walk, args: Any, kwargs: Any) -> Any:
    tensor, dim, start, stop, step = (*args, *(0, None, None, 1)[len(args) - 1 :])
    dim %= len(tensor.shape)
    size = tensor.shape[dim]
    start, stop, step = slice(start, stop, step).indices(size)
    if step != 1:
        raise NoRule(f"step {step}")
    if stop <= start:
        raise NoRule("an empty slice")
    return take(walk, tensor, dim, start, stop)


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
    """Padding of positions (the last axes of an image): they are ordered. Padding of other axes has no rule yet."""
    tensor, amounts = args[:2]
    ordered = walk.why("padded positions are ordered")
    padded = {len(tensor.axes) - 1 - i // 2 for i, amount in enumerate(amounts) if amount}
    if any(dim < 2 for dim in padded):
        raise NoRule("padding of an axis that is not a position")
    for dim in padded:
        pin(tensor.axes[dim], ordered)
    keys = axis_keys(tensor)
    made = walk.loop([(tensor, keys)], tuple(None if axis in padded else key for axis, key in enumerate(keys)))
    for dim in padded:
        made.axes[dim] = pinned(walk.shape[dim], ordered)
    return made
