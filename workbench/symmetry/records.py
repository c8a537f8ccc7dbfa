"""Types of tensors and the records of what operations did to them.

A ``Record`` says which axis of which operand is the same loop: axes with equal keys run together. Everything that is concluded
after the walk (dependent factors, later scales and signs, explanations) reads the records and knows no operation by name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from torch import Tensor
from torch.fx import Node

from workbench.symmetry.pointers import Pointer
from workbench.symmetry.trees import Tree

Keys = tuple[Hashable | None, ...]


class TensorType:
    """The axes of one tensor in the graph.

    value: kept for constants, which are evaluated instead of interpreted; points: what the tensor's values are indices into;
    virtual: pointers it was looked up with.
    """

    def __init__(
        self,
        axes: list[Tree],
        name: str = "",
        value: Tensor | None = None,
        *,
        points: Pointer | None = None,
        virtual: tuple[Pointer, ...] = (),
    ) -> None:
        self._axes, self.name, self.value, self._points, self._virtual = axes, name, value, points, virtual

    @property
    def axes(self) -> list[Tree]:
        return self._axes

    @property
    def points(self) -> Pointer | None:
        return self._points

    @property
    def virtual(self) -> tuple[Pointer, ...]:
        return self._virtual

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)


class Deferred(TensorType):
    """A result whose cost is not paid before it is needed: asking for its axes carries it out with ``force``."""

    def __init__(self, base: TensorType, name: str, force: Callable[[Deferred], TensorType]) -> None:
        super().__init__([], name)
        self.base, self._force = base, force
        self._done: TensorType | None = None

    @property
    def pending(self) -> bool:
        return self._done is None

    def _carried_out(self) -> TensorType:
        if self._done is None:
            self._done = self._force(self)
        return self._done

    @property
    def axes(self) -> list[Tree]:
        return self._carried_out().axes

    @property
    def points(self) -> Pointer | None:
        return None if self.base.points is None else self._carried_out().points

    @property
    def virtual(self) -> tuple[Pointer, ...]:
        return self._carried_out().virtual


class DeferredView(Deferred):
    """A view that splits an axis, not yet believed.

    A packed projection viewed as (3, heads, inside) and then taken apart would tie query, key and value to one another if the
    split were made first. Permutations are collected, and a part of a leading piece is taken from ``base`` before the view.
    base: the tensor viewed; view: the shape it is viewed as; order: result axis d is view axis ``order[d]``; force: carries out.
    """

    def __init__(
        self,
        base: TensorType,
        view: tuple[int, ...],
        order: tuple[int, ...],
        name: str,
        force: Callable[[DeferredView], TensorType],
    ) -> None:
        super().__init__(base, name, force)
        self.view, self.order = view, order

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.view[axis] for axis in self.order)


@dataclass(frozen=True, eq=False)
class Record:
    """One loop nest: operands and results with one key per axis (None: a broadcast axis, or one that takes part in no loop).

    kind: "loop" (out[o] = Φ over reduced keys of φ(operands)), "move" (entries only change place) or "opaque" (anything); node: the
    operation in the graph, for its numbers; cut: for a move along one axis, (axis, where each operand begins in the result), or
    where the result begins in its one longer operand.
    """

    kind: str
    op: str
    module: str
    operands: tuple[tuple[TensorType, Keys], ...]
    results: tuple[tuple[TensorType, Keys], ...] = field(default=())
    node: Node | None = None
    cut: tuple[int, tuple[int, ...]] | None = None
