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
