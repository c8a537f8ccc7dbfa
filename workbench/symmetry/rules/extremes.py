"""Largest, smallest and middle entries along an axis: the values have no order, the positions name one."""

from __future__ import annotations

from typing import Any

from workbench.symmetry.records import TensorType
from workbench.symmetry.rules import rule
from workbench.symmetry.rules.elementwise import elementwise
from workbench.symmetry.rules.reduction import reduce_axes
from workbench.symmetry.trees import pin


@rule("max", "min", "median", "nanmedian", "mode", "kthvalue", "aminmax")
def extreme(walk, args: Any, kwargs: Any) -> Any:
    """max(x), max(x, dim) -> (values, positions), max(x, y); positions that are used pin the axis."""
    tensor = args[0]
    if len(args) > 1 and isinstance(args[1], TensorType):
        return elementwise(walk, args, kwargs)
    rank = len(tensor.axes)
    overload = walk.node.target._overloadname
    place = 2 if walk.op == "kthvalue" else 1
    dim = kwargs.get("dim", args[place] if len(args) > place else -1 if walk.op in ("mode", "kthvalue") else None)
    dims = range(rank) if dim is None else [dim]
    if walk.op != "aminmax" and (overload == "dim" or walk.op in ("mode", "kthvalue")):
        if any(len(user.args) > 1 and user.args[1] == 1 and user.users for user in walk.node.users):
            pin(tensor.axes[dim], walk.why("positions along the axis are named"))
    elif walk.op != "aminmax":
        return reduce_axes(walk, tensor, range(rank), keepdim=False)
    return reduce_axes(walk, tensor, dims, keepdim=len(walk.shape) == rank > 0, results=2)
