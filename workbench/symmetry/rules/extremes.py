"""Largest, smallest and middle entries along an axis: the values have no order, the positions name units of the axis."""

from __future__ import annotations

from typing import Any

from workbench.symmetry.records import TensorType
from workbench.symmetry.rules import rule
from workbench.symmetry.rules.elementwise import elementwise
from workbench.symmetry.rules.reduction import reduce_axes


@rule("max", "min", "median", "nanmedian", "mode", "kthvalue", "aminmax")
def extreme(walk, args: Any, kwargs: Any) -> Any:
    """max(x), max(x, dim) -> (values, positions), max(x, y); positions that are used point into the axis."""
    tensor = args[0]
    if len(args) > 1 and isinstance(args[1], TensorType):
        return elementwise(walk, args, kwargs)
    rank = len(tensor.axes)
    overload = walk.node.target._overloadname
    place = 2 if walk.op == "kthvalue" else 1
    dim = kwargs.get("dim", args[place] if len(args) > place else -1 if walk.op in ("mode", "kthvalue") else None)
    dims = range(rank) if dim is None else [dim]
    positions = walk.op != "aminmax" and (overload == "dim" or walk.op in ("mode", "kthvalue"))
    if not positions and walk.op != "aminmax":
        return reduce_axes(walk, tensor, range(rank), keepdim=False)
    first, second = reduce_axes(walk, tensor, dims, keepdim=len(walk.shape) == rank > 0, results=2)
    if positions and any(len(user.args) > 1 and user.args[1] == 1 and user.users for user in walk.node.users):
        second = walk.point(second, tensor.axes[dim])
    return first, second
