"""All models to one of them, each by itself: the simplest way into common coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError
from workbench.matching.many import ManyMatch, ManyProblem, many_matcher
from workbench.matching.matcher import MatchStep, matcher_needs, resolve_matcher
from workbench.progress import Progress


@many_matcher("all-to-one")
@dataclass(frozen=True)
class AllToOne:
    """Every model is matched to one of them, by any matcher for two. How well two others meet then depends on that one.

    matcher: a registered name or a matcher object; reference: the number of the model that stays.
    """

    matcher: Any = "weights"
    reference: int = 0

    @property
    def needs(self) -> str:
        return matcher_needs(self.matcher)

    def match_many(self, problem: ManyProblem, *, seed: int = 0, progress: Progress | None = None) -> ManyMatch:
        count = len(problem.states)
        if not 0 <= self.reference < count:
            raise WorkbenchError(f"The reference is model {self.reference}", expected=f"a number from 0 to {count - 1}")
        inner = resolve_matcher(self.matcher)
        elements = [problem.symmetry.identity()] * count
        history, found = [], None
        for p in range(count):
            if p == self.reference or (found is not None and found.cancelled):
                continue
            member = problem.members[p].with_anchor(problem.states[self.reference])
            found = inner.match(member, seed=seed + p, progress=progress)
            elements[p] = found.element
            history.append(MatchStep(p, f"model {p}", found.objective, 0.0, sum(found.element.units_moved().values()), 0.0))
        assert found is not None
        return ManyMatch(
            tuple(elements),
            problem.objective(elements),
            tuple(history),
            len(history),
            converged=found.converged,
            cancelled=found.cancelled,
            data_used=found.data_used,
        )
