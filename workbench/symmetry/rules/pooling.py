"""Pooling and resampling: channels pass through, positions are ordered."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree

from workbench.symmetry.rules import rule
from workbench.symmetry.rules.reduction import axis_keys
from workbench.symmetry.trees import pin, pinned

DIMENSIONS = {
    "avg_pool1d": 1, "avg_pool2d": 2, "avg_pool3d": 3, "max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3,
    "_adaptive_avg_pool2d": 2, "_adaptive_avg_pool3d": 3, "adaptive_avg_pool1d": 1, "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3, "upsample_nearest1d": 1, "upsample_nearest2d": 2, "upsample_nearest3d": 3,
    "upsample_linear1d": 1, "upsample_bilinear2d": 2, "upsample_bicubic2d": 2, "upsample_trilinear3d": 3,
    "reflection_pad1d": 1, "reflection_pad2d": 2, "reflection_pad3d": 3, "replication_pad2d": 2, "replication_pad3d": 3,
}  # fmt: skip


@rule(*DIMENSIONS)
def pooling(walk, args: Any, kwargs: Any) -> Any:
    x, space = args[0], DIMENSIONS[walk.op]
    ordered = walk.why("positions under a window are ordered")
    for tree in x.axes[-space:]:
        pin(tree, ordered)
    keys = axis_keys(x)
    head = (*keys[:-space], *(None,) * space)
    results = len(pytree.tree_leaves(walk.node.meta["val"]))
    made = walk.loop([(x, keys)], *[head] * results)
    for tensor in made if isinstance(made, tuple) else (made,):
        tensor.axes[-space:] = [pinned(size, ordered) for size in walk.shape[-space:]]
    return made


@rule("grid_sampler_2d", "grid_sampler_3d")
def grid_sample(walk, args: Any, kwargs: Any) -> Any:
    """x(n, c, H, W) at grid(n, h, w, 2) -> (n, c, h, w): positions of x and coordinates are ordered, the grid's run along."""
    x, grid = args[:2]
    why = walk.why("entries are looked up by position")
    for tree in (*x.axes[2:], grid.axes[-1]):
        pin(tree, why)
    space = tuple(("position", i) for i in range(len(x.axes) - 2))
    keys = ("n", "c", *space)
    operands = [(x, ("n", "c", *(("entry", i) for i in range(len(space))))), (grid, ("n", *space, "coordinate"))]
    operands = [
        (tensor, tuple(None if size == 1 else key for key, size in zip(own, tensor.shape, strict=True))) for tensor, own in operands
    ]
    known = {key for _, own in operands for key in own}
    return walk.loop(operands, tuple(key if key in known else None for key in keys))


@rule("unfold")
def windows(walk, args: Any, kwargs: Any) -> Any:
    """Windows along one axis: it becomes (windows, …, place in the window), both ordered."""
    x, dim = args[0], args[1] % len(args[0].axes)
    ordered = walk.why("positions under a window are ordered")
    pin(x.axes[dim], ordered)
    keys = axis_keys(x)
    made = walk.loop([(x, keys)], (*(None if axis == dim else key for axis, key in enumerate(keys)), None))
    for axis in (dim, len(keys)):
        made.axes[axis] = pinned(walk.shape[axis], ordered)
    return made
