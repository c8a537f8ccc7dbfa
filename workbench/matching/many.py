"""What matching many models means, and the registry of methods for it.

    maximise Σ_(p < q) ⟨π_p(W_p), π_q(W_q)⟩  =  ½ (‖S‖² − Σ_p ‖W_p‖²) ,      S = Σ_p π_p(W_p)

π_p brings model p into common coordinates (the "universe"), so the pair q → p goes by π_p⁻¹ π_q, and going round any circle of
models is exactly the identity (Crisostomi et al., arXiv 2405.17897). The largest Σ is also the largest norm of the models' mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from workbench.errors import WorkbenchError
from workbench.matching.data import NO_DATA
from workbench.matching.matcher import MATCHERS, MatchStep
from workbench.matching.problem import MatchingProblem
from workbench.progress import Progress
from workbench.registry import Registry
from workbench.states import StateDict, mix
from workbench.symmetry.element import Element

T = TypeVar("T")


class ManyProblem:
    """K state dicts of one symmetry: for each a ``MatchingProblem`` in which it is the moving model."""

    def __init__(self, first: MatchingProblem, states: Sequence[StateDict]) -> None:
        self.symmetry, self.names, self.device, self.data = first.symmetry, first.names, first.device, first.data
        self.states = tuple(states)
        self.members = tuple(first.on(states[0], state) for state in states)

    def aligned(self, elements: Sequence[Element]) -> list[dict]:
        """Every model in common coordinates."""
        return [self.symmetry.apply(element, state) for element, state in zip(elements, self.states, strict=True)]

    def objective(self, elements: Sequence[Element]) -> float:
        """Σ_(p < q) ⟨π_p(W_p), π_q(W_q)⟩ over the tensors that count, in float64."""
        total = 0.0
        for index in range(len(self.members[0].blocks)):
            moved = [member.moved(index, element) for member, element in zip(self.members, elements, strict=True)]
            together = sum(moved[1:], moved[0])
            total += float(together.square().sum() - sum(part.square().sum() for part in moved)) / 2
        return total + self.constant

    @property
    def constant(self) -> float:
        """The share of entries that no factor moves."""
        total = 0.0
        for source in self.members[0].still:
            parts = [member.still[source].view for member in self.members]
            total += float(sum(parts[1:], parts[0]).square().sum() - sum(part.square().sum() for part in parts)) / 2
        return total


@dataclass(frozen=True)
class ManyMatch:
    """What a method for many models hands back: elements into common coordinates, and the evidence, as in ``Match``."""

    elements: tuple[Element, ...]
    objective: float
    history: tuple[MatchStep, ...] = ()
    sweeps: int = 0
    converged: bool = True
    cancelled: bool = False
    data_used: str = NO_DATA
    notes: tuple[str, ...] = ()
    criterion: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class ManyMatcher(Protocol):
    """A method that brings several state dicts into common coordinates by elements of their symmetry group."""

    def match_many(self, problem: ManyProblem, *, seed: int = 0, progress: Progress | None = None) -> ManyMatch: ...


MANY_MATCHERS: Registry[Any] = Registry("method for many models", package="workbench.matching", group="workbench.many_matchers")


def many_matcher(name: str, *, reference: str = "") -> Callable[[T], T]:
    """Class decorator: register a method for many models under ``name`` with its paper."""

    def decorate(value: T) -> T:
        value.matcher_name = name  # type: ignore[attr-defined]
        return MANY_MATCHERS.register(name, reference=reference)(value)

    return decorate


def resolve_many(given: Any) -> ManyMatcher:
    """A name, a method for many models, or a matcher for two (then every model goes to the first one)."""
    from workbench.matching.all_to_one import AllToOne

    if isinstance(given, str) and given in MANY_MATCHERS:
        return MANY_MATCHERS[given]()
    if isinstance(given, str) and given in MATCHERS:
        return AllToOne(given)
    if isinstance(given, str):
        MANY_MATCHERS[given]  # raises with a did-you-mean
    if not isinstance(given, type) and isinstance(given, ManyMatcher):
        return given
    if not isinstance(given, type) and hasattr(given, "match"):
        return AllToOne(given)
    raise WorkbenchError(
        f"{given!r} is no method for many models",
        expected=f"one of {', '.join(MANY_MATCHERS)}, or a matcher for two models, which then goes to the first model",
        cause="a class was given instead of an instance" if isinstance(given, type) else "",
    )


def mean_of(states: Sequence[StateDict]) -> dict[str, torch.Tensor]:
    """The mean of float tensors, in the states' dtype; integer buffers are the first model's."""
    return mix(states, [1 / len(states)] * len(states))
