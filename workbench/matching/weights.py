"""Weight matching: coordinate descent over the factors, one linear assignment at a time (Git Re-Basin, arXiv 2209.04836).

    π_p ← argmax_P ⟨C_p, P⟩   for one factor p after another, all others held, until no factor gains

The result is a local optimum that depends on the start and the visiting order; no data is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from workbench.errors import Cancelled, WorkbenchError
from workbench.matching import wreath
from workbench.matching.assignment import assign
from workbench.matching.matcher import Match, MatchStep, matcher
from workbench.matching.problem import CostMatrices, MatchingProblem
from workbench.progress import Progress, Reporter
from workbench.symmetry.element import Element


@matcher("weights", reference="arXiv:2209.04836")
@dataclass(frozen=True)
class WeightMatching:
    """Weight matching by coordinate descent: no data, seconds.

    max_sweeps: visits of every factor at most; tolerance: a move counts when the objective grows by more than
    tolerance · max(1, |objective|), all in float64; order: "random" (a fresh order each sweep, from the seed) or "given";
    include_biases: whether one-axis tensors (biases, norm gains) pull on the match; restarts: runs from further random starts,
    the best objective wins; start: "identity", or "anchored" (factors tied to inputs, outputs and biases first, then outwards:
    it finds planted permutations of deep residual nets that the identity start misses).
    """

    max_sweeps: int = 100
    tolerance: float = 1e-9
    order: Literal["random", "given"] = "random"
    include_biases: bool = True
    restarts: int = 0
    start: Literal["identity", "anchored"] = "identity"

    def __post_init__(self) -> None:
        for name, allowed in (("order", ("random", "given")), ("start", ("identity", "anchored"))):
            if getattr(self, name) not in allowed:
                raise WorkbenchError(f"{name} is {getattr(self, name)!r}", expected=f"one of {', '.join(allowed)}")
        if self.max_sweeps < 1 or self.restarts < 0 or not self.tolerance >= 0:
            raise WorkbenchError(
                f"max_sweeps={self.max_sweeps}, restarts={self.restarts}, tolerance={self.tolerance}",
                expected="max_sweeps ≥ 1, restarts ≥ 0, tolerance ≥ 0",
            )

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        """Run from the start and from ``restarts`` random elements; return the run with the best objective."""
        if not self.include_biases:
            problem = problem.without_biases()
        generator = torch.Generator().manual_seed(seed)
        reporter = Reporter(progress, "matching")
        best: Match | None = None
        for run in range(1 + self.restarts):
            if run:
                drawn = int(torch.randint(2**62, (1,), generator=generator))
                start = problem.symmetry.sample(drawn)
            else:
                start = anchored_start(problem) if self.start == "anchored" else problem.symmetry.identity()
            search = _Search(problem, start, self, reporter)
            try:
                search.descend(generator)
            except Cancelled:
                # What was accepted so far is a valid element: hand it back instead of losing the work.
                search.cancelled = True
            found = search.result()
            if best is None or found.objective > best.objective:
                best = replace(found, cancelled=search.cancelled)
            if search.cancelled:
                return replace(best, cancelled=True)
        assert best is not None
        return best


class _Search:
    """One run of coordinate descent: the element so far, which factors must be visited again, and the history."""

    def __init__(self, problem: MatchingProblem, start: Element, settings: WeightMatching, reporter: Reporter) -> None:
        self.problem, self.settings, self.reporter = problem, settings, reporter
        self.element, self.costs = start, CostMatrices(problem)
        self.objective = problem.objective(start)
        self.history = [MatchStep(0, "", self.objective, 0.0, 0, reporter.seconds)]
        self.waiting = {name for name, places in problem.occurrences.items() if places}
        self.sweeps = 0
        self.cancelled = False
        self.left_alone: list[str] = []

    @property
    def floor(self) -> float:
        return self.settings.tolerance * max(1.0, abs(self.objective))

    def descend(self, generator: torch.Generator) -> None:
        names = list(self.problem.occurrences)
        while self.waiting and self.sweeps < self.settings.max_sweeps:
            self.sweeps += 1
            random = self.settings.order == "random"
            order = torch.randperm(len(names), generator=generator).tolist() if random else range(len(names))
            started, done = self.reporter.seconds, 0.0
            for index in order:
                name = names[index]
                if name not in self.waiting:
                    continue
                gain, changed = self.visit(name)
                done += self.problem.work(name)
                left = sum(self.problem.work(other) for other in self.waiting)
                self.history.append(MatchStep(self.sweeps, name, self.objective, gain, changed, self.reporter.seconds))
                self.reporter.step(
                    **{
                        "sweep": self.sweeps,
                        "objective": self.objective,
                        "gain": gain,
                        "units changed": changed,
                        "factors waiting": len(self.waiting),
                        "seconds left for waiting": (self.reporter.seconds - started) * left / done if done else 0.0,
                    }
                )

    def visit(self, name: str) -> tuple[float, int]:
        """Solve one factor. Returns the gain and the number of units that changed (both 0 where the old permutation is kept)."""
        self.waiting.discard(name)
        before = self.element
        if self.problem.dependents[name]:
            candidate = self._outer(name)
        elif name in self.problem.quadratic:
            candidate = self._proposed(name)
        else:
            return self._linear(name)
        gain = self.problem.objective(candidate) - self.problem.objective(before) if candidate is not before else 0.0
        return self._accept(name, candidate, gain)

    def _linear(self, name: str) -> tuple[float, int]:
        candidate, gain = self._solve(name)
        return self._accept(name, candidate, gain)

    def _solve(self, name: str) -> tuple[Element, float]:
        """One assignment per copy; the summed gain is exact where the factor is not quadratic."""
        old = self.element.permutations[name]
        score = self.costs.of(name, self.element)
        assert score is not None
        new, gain = _assign_copies(score, old)
        if new is old:
            return self.element, 0.0
        return Element({**self.element.permutations, name: new}, self.element.over), gain

    def _proposed(self, name: str) -> Element:
        return self._solve(name)[0]

    def _outer(self, name: str) -> Element:
        if not wreath.can_move(self.problem, name):
            if name not in self.left_alone:
                self.left_alone.append(name)
            return self.element
        return wreath.propose(self.problem, name, self.element)

    def _accept(self, name: str, candidate: Element, gain: float) -> tuple[float, int]:
        if candidate is self.element or gain <= self.floor:
            return 0.0, 0
        changed = 0
        for factor in (name, *self.problem.dependents[name]):
            old, new = self.element.permutations[factor], candidate.permutations[factor]
            moved = int((old != new).sum())
            if moved:
                changed += moved
                self.waiting |= {other for other in self.problem.neighbours[factor] if self.problem.occurrences[other]}
        if name in self.problem.quadratic or self.problem.dependents[name]:
            self.waiting.add(name)
        else:
            self.waiting.discard(name)
        self.element = candidate
        self.objective += gain
        return gain, changed

    def result(self) -> Match:
        notes = [f"{name} was left where it is: its dependent factors depend on others too" for name in self.left_alone]
        return Match(
            self.element,
            self.problem.objective(self.element),
            tuple(self.history),
            self.sweeps,
            converged=not self.waiting,
            notes=tuple(notes),
        )


def _assign_copies(score: Tensor, old: Tensor) -> tuple[Tensor, float]:
    """``assign`` for every copy of a factor; ``old`` itself comes back where nothing gains."""
    if old.dim() == 1:
        return assign(score, old)
    rows, total = [], 0.0
    for values, current in zip(score.flatten(0, -3), old.flatten(0, -2), strict=True):
        row, gain = assign(values, current)
        rows.append(row)
        total += gain
    return (torch.stack(rows).reshape(old.shape), total) if total > 0 else (old, 0.0)


def anchored_start(problem: MatchingProblem) -> Element:
    """A start built from what is fixed: each factor in turn is matched on the blocks whose other factors are already matched.

    The factor with the largest share of such blocks (by squared norm) comes first, so a residual stream starts from stem, head
    and norms, and the inner factors follow.
    """
    element, costs = problem.symmetry.identity(), CostMatrices(problem)
    left = {name for name, places in problem.occurrences.items() if places and not problem.dependents[name]}
    known = set(problem.symmetry.groups) - left
    while left:
        name = max(sorted(left), key=lambda factor: _anchored_share(problem, factor, known))
        score = costs.of(name, element, only=known)
        if score is not None:
            new, _ = _assign_copies(score, element.permutations[name])
            element = Element({**element.permutations, name: new}, element.over)
        left.discard(name)
        known.add(name)
    return element


def _anchored_share(problem: MatchingProblem, factor: str, known: set[str]) -> float:
    anchored = total = 0.0
    for index, axis in problem.occurrences[factor]:
        block = problem.blocks[index][0]
        norm = float(block.view.square().sum())
        total += norm
        others = {label for d, label in enumerate(block.labels) if d != axis and label in problem.symmetry.groups}
        anchored += norm if others <= known else 0.0
    return anchored / total if total else 0.0
