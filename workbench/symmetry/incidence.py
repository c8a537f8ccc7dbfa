"""Which factor touches which tensor axis, as rows: what a table or a graph of the group is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.symmetry import layout as layouts

if TYPE_CHECKING:
    from workbench.symmetry.group import Symmetry


@dataclass(frozen=True)
class TensorAxis:
    """One axis of one tensor; axis None: the tensor as a whole, which changes places with those of other branches.

    role: of the tensor, see ``TensorEntry``; layout: in words, ``conv2 × 25``; factors: the names of those that move the axis;
    reason: what pinned it (a part of it, where there are factors too), or why nothing moves it; empty where it moves as a whole.
    """

    tensor: str
    shape: tuple[int, ...]
    role: str
    axis: int | None
    size: int
    layout: str
    factors: tuple[str, ...]
    reason: str


def tensor_axes(symmetry: Symmetry) -> tuple[TensorAxis, ...]:
    """Every axis of every tensor that has one, in the order of the state dict; tied names are left out, moving with the first."""
    branches = {name: stack for stack in symmetry.stacks for name in stack.names}
    reasons = {(pinned.tensor, pinned.axis): pinned.reason for pinned in symmetry.pinned}
    rows = []
    for name, entry in symmetry.tensors.items():
        if name in symmetry.aliases:
            continue
        if name in branches:
            stack = branches[name]
            places, words = _moving(symmetry, stack.layouts[0]), layouts.describe(stack.layouts[0])
            rows.append(TensorAxis(name, entry.shape, entry.role, None, len(stack.names), words, places, ""))
        for axis, (size, axis_layout) in enumerate(zip(entry.shape, entry.layouts, strict=True)):
            factors = _moving(symmetry, axis_layout)
            reason = reasons.get((name, axis), "")
            if not (reason or factors):
                reason = _why(entry.role, size)
            rows.append(TensorAxis(name, entry.shape, entry.role, axis, size, layouts.describe(axis_layout), factors, reason))
    return tuple(rows)


def _moving(symmetry: Symmetry, layout: layouts.Layout) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in layouts.factors(layout) if name in symmetry.groups))


def _why(role: str, size: int) -> str:
    if role == "unused":
        return "the forward pass does not use this tensor"
    if role == "constant":
        return "a constant, left alone"
    return "a single entry" if size == 1 else "no factor moves it"
