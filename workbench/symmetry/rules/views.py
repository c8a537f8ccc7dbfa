"""Views: entries change place. A reshape is split into the smallest stretches of axes with equal products of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from workbench.symmetry.records import TensorType
from workbench.symmetry.rules import NoRule, rule
from workbench.symmetry.trees import ONE, Tree, pin, pinned, product, split_product, uniform


def segments(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Ranges of old and new axes that hold the same entries, as short as possible, in order; size-1 axes join a neighbour."""
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = i, j
        left = right = 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        yield range(a, i), range(b, j)


def reshape(walk, tensor: TensorType, shape: Sequence[int]) -> TensorType:
    """View ``tensor`` as ``shape``. Where an axis's structure does not allow a split, the whole stretch is pinned."""
    axes: list[Tree] = []
    keys_in: list[Any] = [None] * len(tensor.axes)
    keys_out: list[Any] = []
    why = walk.why(f"reshaped from {tensor.shape} to {tuple(shape)}")
    for number, (old, new) in enumerate(segments(tensor.shape, shape)):
        whole = product(tensor.axes[i] for i in old)
        pieces: list[Tree] = []
        rest = whole
        for size in [shape[j] for j in new][:-1]:
            cut = split_product(rest, size, why)
            if cut is None:
                pin(whole, why)
                pieces = [pinned(shape[j], why) for j in new]
                break
            pieces.append(cut[0])
            rest = cut[1]
        else:
            if len(new):
                pieces.append(rest)
        axes += pieces
        for i in old:
            keys_in[i] = ("segment", number)
        keys_out += [("segment", number)] * len(pieces)
    return walk.move(tensor, tuple(keys_in), axes, tuple(keys_out))


@rule("view", "reshape", "_unsafe_view", "squeeze", "unsqueeze", "flatten", "unflatten")
def view(walk, args: Any, kwargs: Any) -> Any:
    if walk.node.target._overloadname == "dtype":
        raise NoRule("a view as another dtype")
    return reshape(walk, args[0], walk.shape)


@rule("permute", "transpose", "t", "numpy_T")
def permute(walk, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    rank = len(tensor.axes)
    if walk.op == "permute":
        order = [d % rank for d in args[1]]
    else:
        first, second = (args[1] % rank, args[2] % rank) if walk.op == "transpose" else (0, rank - 1)
        order = list(range(rank))
        order[first], order[second] = order[second], order[first]
    return walk.move(tensor, tuple(range(rank)), [tensor.axes[d] for d in order], tuple(order))


@rule("expand")
def expand(walk, args: Any, kwargs: Any) -> Any:
    """A new or stretched axis holds copies: the result is constant along it."""
    tensor, shape = args[0], walk.shape
    offset = len(shape) - len(tensor.axes)
    axes: list[Tree] = []
    keys: list[Any] = []
    for axis, size in enumerate(shape):
        own = axis - offset
        kept = own >= 0 and tensor.axes[own].size == size
        axes.append(tensor.axes[own] if kept else uniform(size))
        keys.append(own if kept and size > 1 else None)
    return walk.move(tensor, tuple(i if tree is not ONE else None for i, tree in enumerate(tensor.axes)), axes, tuple(keys))


@rule("repeat")
def repeat(walk, args: Any, kwargs: Any) -> Any:
    """Copies side by side: the copies are alike, the axis repeats inside."""
    tensor, counts = args[0], args[1]
    offset = len(counts) - len(tensor.axes)
    axes: list[Tree] = []
    keys: list[Any] = []
    for axis, count in enumerate(counts):
        own = axis - offset
        axes.append(product((uniform(count), tensor.axes[own])) if own >= 0 else uniform(count))
        keys.append(own if own >= 0 and tensor.axes[own] is not ONE else None)
    return walk.move(tensor, tuple(i if tree is not ONE else None for i, tree in enumerate(tensor.axes)), axes, tuple(keys))


@rule("full_like", "zeros_like", "ones_like", "new_zeros", "new_full", "new_ones", "scalar_tensor")
def filled(walk, args: Any, kwargs: Any) -> Any:
    """The operand gives only a shape; the result is constant along every axis."""
    shape = walk.shape
    return walk.loop_free([uniform(size) for size in shape])
