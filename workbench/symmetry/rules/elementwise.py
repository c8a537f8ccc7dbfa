"""Element-wise operations: every operand's axes run together, aligned from the right; a size-1 axis is broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils import _pytree as pytree

from workbench.symmetry.records import DeferredView, TensorType
from workbench.symmetry.rules import rule

UNARY = (
    "abs acos acosh alias asin asinh atan atanh bitwise_not ceil celu clone contiguous cos cosh detach elu erf erfc "
    "erfinv exp exp2 expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh isfinite isinf isnan "
    "leaky_relu lift_fresh_copy log log10 log1p log2 log_sigmoid_forward logical_not logit mish nan_to_num neg "
    "positive reciprocal relu relu6 round rsqrt selu sgn sigmoid sign signbit silu sin sinh softplus softshrink "
    "sqrt square tan tanh threshold to trunc _to_copy"
).split()
COPIES = ("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "_to_copy", "to")
BINARY = (
    "add addcdiv addcmul atan2 bitwise_and bitwise_or bitwise_xor clamp clamp_max clamp_min copysign div eq "
    "floor_divide fmax fmin fmod ge gt hypot le lerp logical_and logical_or logical_xor lt masked_fill maximum "
    "minimum mul ne pow remainder rsub sub true_divide where xlogy"
).split()


def broadcast_keys(operands: Sequence[TensorType], rank: int) -> list[tuple[int | None, ...]]:
    """Keys counted from the right; None where an operand has one entry against a longer loop."""
    longest = [1] * rank
    for operand in operands:
        for i, size in enumerate(reversed(operand.shape)):
            longest[i] = max(longest[i], size)
    keys = []
    for operand in operands:
        count = len(operand.axes)
        sizes = operand.shape
        keys.append(tuple(None if sizes[a] == 1 else count - 1 - a for a in range(count)))
    return keys


@rule(*UNARY, *BINARY)
def elementwise(walk, args: Any, kwargs: Any) -> Any:
    if walk.op in COPIES and isinstance(args[0], DeferredView) and args[0].pending:
        return args[0]
    operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, TensorType)]
    shape = walk.shape
    result = tuple(None if size == 1 else len(shape) - 1 - axis for axis, size in enumerate(shape))
    return walk.loop(list(zip(operands, broadcast_keys(operands, len(shape)), strict=True)), result)
