"""What a symmetry says of one factor, of one tensor, and of tensors that move together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.states import StateDict
from workbench.symmetry.layout import Layout

MOVED, FIXED, CONSTANT, UNUSED = "moved", "fixed", "constant", "unused"


@dataclass(frozen=True)
class Member:
    """One tensor axis that a factor moves; ``layout`` is the layout of the whole axis.

    axis None: the factor moves the tensor as a whole, to the place of another one (branches that may be exchanged).
    """

    tensor: str
    axis: int | None
    layout: Layout


@dataclass(frozen=True)
class Group:
    """One factor: S_size, or one copy of it for every value of the factors in ``over`` (``copies`` in all).

    ties: in words, which operations tied the members together.
    """

    name: str
    size: int
    kind: str
    members: tuple[Member, ...]
    over: tuple[str, ...] = ()
    over_sizes: tuple[int, ...] = ()
    ties: tuple[str, ...] = ()

    @property
    def copies(self) -> int:
        return math.prod(self.over_sizes)

    @property
    def log10_order(self) -> float:
        """log10 (size!)^copies."""
        return self.copies * math.lgamma(self.size + 1) / math.log(10)


@dataclass(frozen=True)
class PinnedAxis:
    """A tensor axis that no factor moves, with the operation and the module path that pinned it."""

    tensor: str
    axis: int
    reason: str


@dataclass(frozen=True)
class TensorEntry:
    """What happens to one entry of the state dict.

    role: "moved", "fixed", "constant" (left alone) or "unused" by the forward; buffer: a buffer of the model and not a
    parameter: it moves along, but what it holds are data statistics and not weights; orders: for an axis whose layout describes its
    entries in another order (factors of several stretches), entry i of the layout is entry ``orders[axis][i]``; else empty or None.
    """

    shape: tuple[int, ...]
    layouts: tuple[Layout, ...]
    role: str
    buffer: bool = False
    orders: tuple[tuple[int, ...] | None, ...] = ()


@dataclass(frozen=True)
class Stack:
    """Tensors of exchangeable branches, moved as one tensor with a new first axis, which says in which branch each stands.

    layouts: one per axis of the stacked tensor, the new one first. A tensor that is not stacked stands alone; its axes are brought
    into the ``orders`` that its layouts describe.
    """

    names: tuple[str, ...]
    layouts: tuple[Layout, ...]
    orders: tuple[tuple[int, ...] | None, ...] = ()

    def gather(self, state: StateDict) -> Tensor:
        """The stacked tensor; a lone tensor is itself."""
        if len(self.names) > 1:
            return torch.stack([state[name] for name in self.names])
        tensor = state[self.names[0]]
        for axis, order in enumerate(self.orders):
            if order is not None:
                tensor = tensor.index_select(axis, torch.tensor(order, device=tensor.device))
        return tensor

    def scatter(self, tensor: Tensor) -> dict[str, Tensor]:
        """The inverse of ``gather``."""
        for axis, order in enumerate(self.orders):
            if order is not None:
                tensor = tensor.index_select(axis, torch.tensor(order, device=tensor.device).argsort())
        return {self.names[0]: tensor} if len(self.names) == 1 else dict(zip(self.names, tensor.unbind(), strict=True))
