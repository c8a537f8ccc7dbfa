"""Symmetric reductions: the reduced loop disappears, its order does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.symmetry.records import TensorType
from workbench.symmetry.rules import rule


def axis_keys(tensor: TensorType) -> tuple[int | None, ...]:
    return tuple(None if size == 1 else axis for axis, size in enumerate(tensor.shape))


def reduce_axes(walk, tensor: TensorType, dims: Sequence[int], *, keepdim: bool, results: int = 1) -> Any:
    """``results`` tensors in which the axes ``dims`` are gone (or of size 1)."""
    rank = len(tensor.axes)
    gone = {d % rank for d in dims} if rank else set()
    keys = axis_keys(tensor)
    kept = tuple(None if axis in gone else keys[axis] for axis in range(rank) if keepdim or axis not in gone)
    return walk.loop([(tensor, keys)], *[kept] * results)


def _dims(value: Any, rank: int) -> list[int]:
    if value is None or (isinstance(value, Sequence) and not value):
        return list(range(rank))
    return [value] if isinstance(value, int) else list(value)


@rule("sum", "mean", "amax", "amin", "any", "all", "prod", "logsumexp", "var", "std", "norm", "linalg_vector_norm", "var_mean")
def reduction(walk, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    position = 2 if walk.op in ("linalg_vector_norm", "norm") else 1
    dim = kwargs.get("dim", args[position] if len(args) > position else None)
    rank = len(tensor.axes)
    dims = _dims(dim if not isinstance(dim, float | bool) else None, rank)
    keepdim = len(walk.shape) == rank and rank > 0
    return reduce_axes(walk, tensor, dims, keepdim=keepdim, results=2 if walk.op == "var_mean" else 1)


@rule("_softmax", "_log_softmax", "softmax", "log_softmax")
def softmax(walk, args: Any, kwargs: Any) -> Any:
    tensor, dim = args[:2]
    total = reduce_axes(walk, tensor, [dim], keepdim=True)
    keys = axis_keys(tensor)
    reduced = tuple(None if axis == dim % len(keys) else key for axis, key in enumerate(keys))
    return walk.loop([(tensor, keys), (total, reduced)], keys)
