"""Matrix products: the contracted loop is shared by both factors and absent from the result."""

from __future__ import annotations

from typing import Any

from workbench.symmetry.records import TensorType
from workbench.symmetry.rules import NoRule, rule
from workbench.symmetry.rules.elementwise import broadcast_keys
from workbench.symmetry.trees import pin, pinned


def _bias(bias: TensorType, keys: tuple) -> tuple[TensorType, tuple]:
    """A broadcast addend against a result with ``keys``."""
    own = broadcast_keys([bias], len(keys))[0]
    return bias, tuple(None if k is None else keys[len(keys) - 1 - k] for k in own)


@rule("mm", "bmm", "mv", "dot")
def product(walk, args: Any, kwargs: Any) -> Any:
    left, right = args[:2]
    batch = ("b",) if walk.op == "bmm" else ()
    if walk.op in ("mm", "bmm"):
        return walk.loop([(left, (*batch, "i", "k")), (right, (*batch, "k", "j"))], (*batch, "i", "j"))
    if walk.op == "mv":
        return walk.loop([(left, ("i", "k")), (right, ("k",))], ("i",))
    return walk.loop([(left, ("k",)), (right, ("k",))], ())


@rule("addmm", "baddbmm")
def product_with_addend(walk, args: Any, kwargs: Any) -> Any:
    addend, left, right = args[:3]
    if not isinstance(addend, TensorType):
        raise NoRule("the addend is not a tensor")
    batch = ("b",) if walk.op == "baddbmm" else ()
    keys = (*batch, "i", "j")
    return walk.loop([(left, (*batch, "i", "k")), (right, (*batch, "k", "j")), _bias(addend, keys)], keys)


@rule("_cdist_forward", "cdist")
def distances(walk, args: Any, kwargs: Any) -> Any:
    """‖x_i − y_j‖_p: the coordinates are a symmetric sum."""
    left, right = args[:2]
    batch = tuple(("b", i) for i in range(len(left.axes) - 2))
    return walk.loop([(left, (*batch, "i", "k")), (right, (*batch, "j", "k"))], (*batch, "i", "j"))


@rule("_trilinear")
def trilinear(walk, args: Any, kwargs: Any) -> Any:
    """Σ of a product of three tensors, each with new axes at its places, over the axes ``sum``."""
    tensors, places, summed = args[:3], args[3:6], args[6]
    operands = []
    for tensor, added in zip(tensors, places, strict=True):
        axes = iter(range(len(tensor.axes) + len(added)))
        keys = [axis for axis in axes if axis not in added]
        operands.append((tensor, tuple(None if size == 1 else key for key, size in zip(keys, tensor.shape, strict=True))))
    known = {key for _, keys in operands for key in keys}
    rank = len(tensors[0].axes) + len(places[0])
    return walk.loop(operands, tuple(axis if axis in known else None for axis in range(rank) if axis not in summed))


@rule("diagonal", "diagonal_copy")
def diagonal(walk, args: Any, kwargs: Any) -> Any:
    """out[…, i] = x[…, i, i]: the main diagonal of a square is one loop over both axes; any other keeps their order."""
    x = args[0]
    offset, first, second = (*args[1:], *(0, 0, 1)[len(args) - 1 :])
    offset, first, second = (kwargs.get(name, v) for name, v in (("offset", offset), ("dim1", first), ("dim2", second)))
    rank = len(x.axes)
    first, second = first % rank, second % rank
    keys = [None if size == 1 else axis for axis, size in enumerate(x.shape)]
    rest = [key for axis, key in enumerate(keys) if axis not in (first, second)]
    if offset == 0 and x.shape[first] == x.shape[second]:
        keys[second] = keys[first]
        return walk.loop([(x, tuple(keys))], (*rest, keys[first]))
    why = walk.why("a diagonal is read in order")
    pin(x.axes[first], why)
    pin(x.axes[second], why)
    made = walk.loop([(x, tuple(keys))], (*rest, None))
    made.axes[-1] = pinned(walk.shape[-1], why)
    return made
