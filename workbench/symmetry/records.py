"""Types of tensors and the records of what operations did to them.

A ``Record`` says which axis of which operand is the same loop: axes with equal keys run together. Everything that is concluded
after the walk (dependent factors, later scales and signs, explanations) reads the records and knows no operation by name.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import Tensor

from workbench.symmetry.trees import Tree

Keys = tuple[Hashable | None, ...]


@dataclass(eq=False)
class TensorType:
    """The axes of one tensor in the graph. ``value`` is kept for constants, which are evaluated instead of interpreted."""

    axes: list[Tree]
    name: str = ""
    value: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)


@dataclass(frozen=True, eq=False)
class Record:
    """One loop nest: operands and results with one key per axis (None: a broadcast axis, or one that takes part in no loop).

    kind: "loop" (out[o] = Φ over reduced keys of φ(operands)), "move" (entries only change place) or "opaque" (anything).
    """

    kind: str
    op: str
    module: str
    operands: tuple[tuple[TensorType, Keys], ...]
    results: tuple[tuple[TensorType, Keys], ...] = field(default=())
