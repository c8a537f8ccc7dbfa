"""Matrix products: the contracted loop is shared by both factors and absent from the result."""

from __future__ import annotations

from typing import Any

from workbench.symmetry.records import TensorType
from workbench.symmetry.rules import NoRule, rule
from workbench.symmetry.rules.elementwise import broadcast_keys


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
