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
from workbench.matching import heads, wreath
from workbench.matching.assignment import SOLVERS, Assigner, Solver
from workbench.matching.matcher import Match, MatchStep, matcher
from workbench.matching.problem import CostMatrices, MatchingProblem
from workbench.matching.signed import solve
from workbench.matching.starts import anchored_start
from workbench.progress import Progress, Reporter
from workbench.symmetry.element import Element


@matcher("weights", reference="arXiv:2209.04836")
@dataclass(frozen=True)
class WeightMatching:
    """Weight matching by coordinate descent: no data, seconds.

    Where the symmetry has signs (``discover_symmetry(..., signs=True)``), every visit also chooses the signs of the factor's units,
    by an assignment on absolute values (``workbench.matching.signed``). Positive scales stay at 1: ``min_mass`` takes them out.

    max_sweeps: visits of every factor at most; tolerance: a move counts when the objective grows by more than
    tolerance · max(1, |objective|), all in float64; order: "random" (a fresh order each sweep, from the seed) or "given";
    include_biases: whether one-axis tensors (biases, norm gains) pull on the match; restarts: runs from further random starts,
    the best objective wins; start: "identity", or "anchored" (factors tied to inputs, outputs and biases first, then outwards:
    it finds planted permutations of deep residual nets that the identity start misses);
    head_similarity: "weights", or "invariant": heads are ordered by the products W_Q W_Kᵀ and W_V W_O, which no change of basis
    inside a head can touch (``workbench.matching.heads``); what is inside each head is then arranged by its weights. The order of
    the heads no longer raises the objective over weights, so the history may fall where heads were visited.
    solver: of the assignments, "auto", "scipy", "jv" or "auction" (``workbench.matching.assignment``); all are exact.
    """

    max_sweeps: int = 100
    tolerance: float = 1e-9
    order: Literal["random", "given"] = "random"
    include_biases: bool = True
    restarts: int = 0
    start: Literal["identity", "anchored"] = "identity"
    head_similarity: Literal["weights", "invariant"] = "weights"
    solver: Solver = "auto"

    def __post_init__(self) -> None:
        choices = {
            "order": ("random", "given"),
            "start": ("identity", "anchored"),
            "head_similarity": ("weights", "invariant"),
            "solver": SOLVERS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise WorkbenchError(f"{name} is {getattr(self, name)!r}", expected=f"one of {', '.join(allowed)}")
        if self.max_sweeps < 1 or self.restarts < 0 or not self.tolerance >= 0:
            raise WorkbenchError(
                f"max_sweeps={self.max_sweeps}, restarts={self.restarts}, tolerance={self.tolerance}",
                expected="max_sweeps ≥ 1, restarts ≥ 0, tolerance ≥ 0",
            )

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        """Run from the start (or ``problem.start``) and from ``restarts`` random elements; the best objective wins."""
        if not self.include_biases:
            problem = problem.without_biases()
        generator = torch.Generator().manual_seed(seed)
        reporter = Reporter(progress, "matching")
        best: tuple[float, Match] | None = None
        ranks: list[float] = []
        for run in range(1 + self.restarts):
            if run:
                drawn = int(torch.randint(2**62, (1,), generator=generator))
                start = problem.symmetry.sample(drawn)
            elif problem.start is not None:
                start = problem.start
            else:
                start = anchored_start(problem) if self.start == "anchored" else problem.symmetry.identity()
            search = _Search(problem, start, self, reporter)
            try:
                search.descend(generator)
            except Cancelled:
                # What was accepted so far is a valid element: hand it back instead of losing the work.
                search.cancelled = True
            objective = problem.objective(search.element)
            ranks.append(search.rank(objective))
            if best is None or ranks[-1] > best[0]:
                best = ranks[-1], search.result(objective)
            if search.cancelled:
                break
        assert best is not None
        return replace(best[1], cancelled=search.cancelled, starts=tuple(ranks) if self.restarts else ())


class _Search:
    """One run of coordinate descent: the element so far, which factors must be visited again, and the history."""

    def __init__(self, problem: MatchingProblem, start: Element, settings: WeightMatching, reporter: Reporter) -> None:
        self.problem, self.settings, self.reporter = problem, settings, reporter
        self.element, self.costs, self.assigner = problem.searched(start), CostMatrices(problem), Assigner(settings.solver)
        self.objective = problem.objective(self.element)
        self.history = [MatchStep(0, "", self.objective, 0.0, 0, reporter.seconds)]
        self.waiting = {name for name, places in problem.occurrences.items() if places}
        self.sweeps = 0
        self.cancelled = False
        self.left_alone: list[str] = []
        self.pairs: dict[str, tuple[heads.HeadPair, ...]] = {}
        if settings.head_similarity == "invariant":
            found = {name: heads.head_pairs(problem, name) for name in problem.symmetry.groups}
            self.pairs = {name: pairs for name, pairs in found.items() if pairs}
        # Rows of a pair are arranged with the heads, by the same similarity, and have no visit of their own.
        self.rows = {row for name, pairs in self.pairs.items() for row in heads.rows(pairs)}
        self.waiting -= self.rows

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
        if name in self.pairs:
            similarity = heads.similarity(self.problem, self.pairs[name], before)
            proposal = wreath.propose(self.problem, name, before, similarity=similarity)
            assert proposal.gain is not None
            return self._accept(name, proposal.element, proposal.gain)
        if self.problem.dependents[name]:
            candidate = self._outer(name)
        elif name in self.problem.quadratic:
            candidate = self._solve(name)[0]
        else:
            return self._accept(name, *self._solve(name))
        gain = self.problem.objective(candidate) - self.problem.objective(before) if candidate is not before else 0.0
        return self._accept(name, candidate, gain)

    def _solve(self, name: str) -> tuple[Element, float]:
        """One assignment per copy, signs included; the summed gain is exact where the factor is not quadratic."""
        return solve(self.problem, self.costs, name, self.element, assigner=self.assigner)

    def _outer(self, name: str) -> Element:
        if not wreath.can_move(self.problem, name):
            if name not in self.left_alone:
                self.left_alone.append(name)
            return self.element
        return wreath.propose(self.problem, name, self.element).element

    def _accept(self, name: str, candidate: Element, gain: float) -> tuple[float, int]:
        if candidate is self.element or gain <= self.floor:
            return 0.0, 0
        changed = 0
        for factor in (name, *self.problem.dependents[name]):
            moved = int(self._changed(factor, candidate).sum())
            if moved:
                changed += moved
                self._wake(factor)
        if name in self.pairs:
            self.objective = self.problem.objective(candidate)
            self.waiting.discard(name)
        else:
            self.objective += gain
            if self._solved_together(name):
                self.waiting -= {name, *self.problem.dependents[name]}
            else:
                self.waiting.add(name)
        self.element = candidate
        return gain, changed

    def _changed(self, factor: str, candidate: Element) -> Tensor:
        """Which units of ``factor`` have another source, or another sign, in ``candidate``."""
        changed = self.element.permutations[factor] != candidate.permutations[factor]
        for name in self.problem.sign_names[factor]:
            changed = changed | (self.element.scales[name] != candidate.scales[name])
        return changed

    def _wake(self, factor: str) -> None:
        """The factors whose best arrangement depends on that of ``factor``."""
        woken = {other for other in self.problem.neighbours[factor] if self.problem.occurrences[other]} - self.rows
        for outer in self.problem.symmetry.groups[factor].over:
            # The order of the copies was chosen for the best arrangements inside, whichever the present ones are.
            if outer in self.pairs or (outer in woken and self._solved_together(outer)):
                woken.discard(outer)
        self.waiting |= woken

    def _solved_together(self, name: str) -> bool:
        """Whether one visit finds the best of ``name`` and its dependents, all others held."""
        if name in self.problem.quadratic:
            return False
        return not self.problem.dependents[name] or wreath.separable(self.problem, name)

    def rank(self, objective: float) -> float:
        """What runs from several starts are compared by: the objective, the products in place of the weights they stand for."""
        if not self.pairs:
            return objective
        gone = {index for pairs in self.pairs.values() for index in heads.replaced(self.problem, pairs)}
        shared = sum(heads.agreement(self.problem, pairs, self.element) for pairs in self.pairs.values())
        return shared + self.problem.objective(self.element, skip=gone)

    def result(self, objective: float) -> Match:
        notes = [f"{name} was left where it is: its dependent factors depend on others too" for name in self.left_alone]
        for name, signs in self.problem.sign_names.items():
            values = [self.element.scales[sign] for sign in signs]
            if values and any(bool((value < 0).any()) for value in values):
                negated = int(torch.stack(values).lt(0).any(0).sum())
                notes.append(f"{negated} of {values[0].numel()} units of {name} were negated")
        if self.assigner.solved.keys() - {"scipy"}:
            notes.append(self.assigner.words)
        if self.settings.head_similarity == "invariant":
            ordered = ", ".join(self.pairs)
            notes.append(f"ordered by invariant products: {ordered or 'nothing, no factor has pairs of projections'}")
        return Match(
            self.element,
            objective,
            tuple(self.history),
            self.sweeps,
            converged=not self.waiting,
            notes=tuple(notes),
        )
