"""Element-wise operations: every operand's axes run together, aligned from the right; a size-1 axis is broadcast."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from workbench.symmetry.records import Deferred, TensorType
from workbench.symmetry.rules import rule
from workbench.symmetry.trees import unify

UNARY = (
    "abs acos acosh alias asin asinh atan atanh bitwise_not ceil celu clone contiguous cos cosh detach elu erf erfc "
    "erfinv exp exp2 expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh isfinite isinf isnan "
    "leaky_relu lift_fresh_copy log log10 log1p log2 log_sigmoid_forward logical_not logit mish nan_to_num neg "
    "positive reciprocal relu relu6 round rsqrt selu sgn sigmoid sign signbit silu sin sinh softplus softshrink "
    "sqrt square tan tanh threshold to trunc _to_copy lgamma digamma i0 sinc special_erfcx special_log_ndtr"
).split()
COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
CLAMPS = ("clamp",)
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


@rule(*UNARY, *BINARY, indices=True)
def elementwise(walk, args: Any, kwargs: Any) -> Any:
    if walk.op in COPIES and isinstance(args[0], Deferred) and args[0].pending:
        return args[0]
    operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, TensorType)]
    shape = walk.shape
    result = tuple(None if size == 1 else len(shape) - 1 - axis for axis, size in enumerate(shape))
    if any(operand.points is not None for operand in operands):
        return _of_indices(walk, args, operands, result)
    return walk.loop(list(zip(operands, broadcast_keys(operands, len(shape)), strict=True)), result)


def _of_indices(walk, args: Any, operands: list[TensorType], result: tuple[int | None, ...]) -> TensorType:
    """What may be done with indices without asking for their order: copy them, clamp them to the axis they point into, compare them
    with its bounds, with each other, or with every position (one-hot)."""
    first = operands[0]
    keys = broadcast_keys(operands, len(result))
    pointer = first.points
    if pointer is not None and len(operands) == 1:
        if walk.op in COPIES or (walk.op in CLAMPS and _holds_all(args[1:], pointer.tree.size)):
            return walk.loop([(first, keys[0])], result, points=pointer.through(keys[0], result))
        if walk.op in COMPARISONS and _says_nothing(walk.op, args[1], pointer.tree.size):
            return walk.loop([(first, keys[0])], result)
    if pointer is not None and len(operands) == 2 and walk.op in ("eq", "ne"):
        other = operands[1]
        if other.points is not None:
            unify(pointer.tree, other.points.tree, walk.why("indices into the two are compared"))
            return walk.loop(list(zip(operands, keys, strict=True)), result)
        axis = _all_positions(other, pointer.tree.size)
        if axis is not None and keys[1][axis] not in keys[0]:
            positions = TensorType([pointer.tree], f"positions of {first.name}")
            return walk.loop([(first, keys[0]), (positions, (keys[1][axis],))], result)
    for operand in operands:
        walk.use_as_numbers(operand)
    return walk.loop(list(zip(operands, keys, strict=True)), result)


def _holds_all(bounds: Sequence[Any], size: int) -> bool:
    """Whether clamping to ``bounds`` (low, high) leaves 0…size−1 alone."""
    low, high = (*bounds, None, None)[:2]
    return (low is None or low <= 0) and (high is None or high >= size - 1)


def _says_nothing(op: str, number: Any, size: int) -> bool:
    """Whether an index in 0…size−1 compared with ``number`` gives one answer for all."""
    if isinstance(number, TensorType):
        return False
    compare = getattr(operator, op)
    return len({bool(compare(i, number)) for i in range(size)}) == 1


def _all_positions(tensor: TensorType, size: int) -> int | None:
    """The axis along which a constant counts 0…size−1, all other axes being of size 1; else None."""
    if tensor.value is None or tensor.value.is_meta or tensor.value.numel() != size or size < 2:
        return None
    counts = torch.equal(tensor.value.flatten().to(torch.int64), torch.arange(size))
    return tensor.shape.index(size) if counts and size in tensor.shape else None
