"""Controls to print beside a matcher: no matching at all, and a random element of the group."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.matching.matcher import Match, MatchStep, matcher
from workbench.matching.problem import MatchingProblem
from workbench.progress import Progress
from workbench.symmetry.element import Element


def _untouched(problem: MatchingProblem, element: Element, note: str) -> Match:
    objective = problem.objective(element)
    return Match(element, objective, (MatchStep(0, "", objective, 0.0, 0, 0.0),), converged=False, notes=(note,))


@matcher("identity")
@dataclass(frozen=True)
class NoMatching:
    """Control: leave every unit where it is (the naive interpolation)."""

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        return _untouched(problem, problem.symmetry.identity(), "control: nothing was matched")


@matcher("random")
@dataclass(frozen=True)
class RandomElement:
    """Control: a random element of the group, drawn from the seed (the barrier should stay near the naive one)."""

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        return _untouched(problem, problem.symmetry.sample(seed), "control: a random element, nothing was matched")
