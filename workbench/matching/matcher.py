"""What a matcher is: an object whose fields are its hyper-parameters, registered under a name.

A new method is one file in this package (or behind an entry point of the group ``workbench.matchers``)::

    @matcher("mine", reference="arXiv:0000.00000")
    @dataclass(frozen=True)
    class MyMatching:
        '''One line that lists show.'''
        rounds: int = 10
        def match(self, problem, *, seed=0, progress=None) -> Match: ...

``needs`` (an attribute or property, default "nothing") says what a method looks at beside the weights: "inputs" (examples, run
through the model) or "labels" (a task: examples with targets, and gradients). ``problem.data`` then holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from workbench.errors import WorkbenchError
from workbench.matching.data import NO_DATA
from workbench.matching.problem import MatchingProblem
from workbench.progress import Progress
from workbench.registry import Registry
from workbench.symmetry.element import Element

T = TypeVar("T")


@dataclass(frozen=True)
class MatchStep:
    """One visit of one factor. The first entry of a history has sweep 0 and an empty factor: the objective before any move.

    objective: after the visit; gain: by how much it grew (0 where the old permutation was kept); units_changed: how many units
    of the factor moved in this visit; seconds: since the matcher began.
    """

    sweep: int
    factor: str
    objective: float
    gain: float
    units_changed: int
    seconds: float


@dataclass(frozen=True)
class Match:
    """What a matcher hands back: an element and the evidence for it.

    objective: Σ ⟨anchor, π(moving)⟩ over the tensors of the problem, whatever the matcher itself looks at; criterion: what it
    looks at, in words -> the value reached; starts: what each of several starts reached, in the order they were run;
    converged: its own search came to rest (a local optimum, never called optimal); cancelled: the caller stopped the search
    and this is the best element found until then.
    """

    element: Element
    objective: float
    history: tuple[MatchStep, ...] = ()
    sweeps: int = 0
    converged: bool = True
    cancelled: bool = False
    data_used: str = NO_DATA
    notes: tuple[str, ...] = ()
    criterion: Mapping[str, float] = field(default_factory=dict)
    starts: tuple[float, ...] = ()


@runtime_checkable
class Matcher(Protocol):
    """A method that brings one state dict close to another by an element of their symmetry group."""

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match: ...


NEEDS = {"nothing": NO_DATA, "inputs": "examples, forward passes", "labels": "a task: examples with targets, and gradients"}

MATCHERS: Registry[Any] = Registry("matcher", package="workbench.matching", group="workbench.matchers")


def matcher(name: str, *, reference: str = "") -> Callable[[T], T]:
    """Class decorator: register a matcher under ``name`` with its paper."""

    def decorate(value: T) -> T:
        value.matcher_name = name  # type: ignore[attr-defined]
        return MATCHERS.register(name, reference=reference)(value)

    return decorate


def resolve_matcher(given: str | Matcher) -> Matcher:
    """A registered name becomes that matcher with its default fields; an object is checked and returned."""
    if isinstance(given, str):
        return MATCHERS[given]()
    if isinstance(given, type) or not isinstance(given, Matcher):
        raise WorkbenchError(
            f"{given!r} is not a matcher",
            expected=f"a registered name ({', '.join(MATCHERS)}) or an object with match(problem, *, seed, progress)",
            cause="a class was given instead of an instance" if isinstance(given, type) else "",
        )
    return given


def matcher_needs(given: Any) -> str:
    """A key of ``NEEDS``: what a matcher (name, class or object) looks at beside the weights."""
    chosen = MATCHERS[given]() if isinstance(given, str) else given() if isinstance(given, type) else given
    needs = getattr(chosen, "needs", "nothing")
    if needs not in NEEDS:
        raise WorkbenchError(f"The matcher {type(chosen).__name__} needs {needs!r}", expected=f"one of {', '.join(NEEDS)}")
    return needs


def matcher_settings(chosen: Matcher) -> dict[str, Any]:
    """The name and the hyper-parameters of a matcher, for the record."""
    settings: dict[str, Any] = {"matcher": getattr(chosen, "matcher_name", type(chosen).__name__)}
    if is_dataclass(chosen):
        settings |= {field.name: getattr(chosen, field.name) for field in fields(chosen)}
    return settings
