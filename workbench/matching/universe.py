"""Cycle-consistent matching of many models by Frank–Wolfe (Crisostomi et al., arXiv 2405.17897).

    f(X_1 … X_K) = Σ_(p < q) ⟨X_p(W_p), X_q(W_q)⟩ = ½ (‖S‖² − Σ_p ‖X_p(W_p)‖²)     S = Σ_p X_p(W_p)
    ∂f/∂X_p: the scores of W_p against S − X_p(W_p)

All models and all factors step at once, along a segment on which f is a polynomial. Multiplying all X_p by one element changes
nothing, so the first model is held in place; the others start evenly spread, or where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from workbench.errors import Cancelled, WorkbenchError
from workbench.matching.frank_wolfe import blend, line_search
from workbench.matching.many import ManyMatch, ManyProblem, many_matcher
from workbench.matching.matcher import MatchStep
from workbench.matching.merge_many import MergeMany
from workbench.matching.relaxation import Relaxation
from workbench.progress import Progress, Reporter
from workbench.symmetry.element import Element


@many_matcher("frank-wolfe", reference="arXiv:2405.17897")
@dataclass(frozen=True)
class UniverseFrankWolfe:
    """Cycle-consistent matching through a universe, all models at once by Frank–Wolfe: nothing random, no order of models.

    start: "barycentre" or "identity", of all models but the first; max_iterations: steps at most; tolerance: it stops where the gap
    is below tolerance · max(1, |f|); polish: rounds of MERGE-MANY in the given order from the rounded answer.
    """

    start: Literal["barycentre", "identity"] = "barycentre"
    max_iterations: int = 200
    tolerance: float = 1e-4
    polish: bool = True

    def __post_init__(self) -> None:
        if self.start not in ("barycentre", "identity"):
            raise WorkbenchError(f"start is {self.start!r}", expected="barycentre or identity")
        if self.max_iterations < 1 or not self.tolerance >= 0:
            raise WorkbenchError(
                f"max_iterations={self.max_iterations}, tolerance={self.tolerance}", expected="max_iterations ≥ 1, tolerance ≥ 0"
            )

    def match_many(self, problem: ManyProblem, *, seed: int = 0, progress: Progress | None = None) -> ManyMatch:
        climb = _Climb(problem, self, Reporter(progress, "matching"))
        found = climb.run()
        if not self.polish or found.cancelled:
            return found
        last = MergeMany(order="given").go_on(problem, found.elements, progress=progress)
        return replace(
            last,
            history=(*found.history, *(replace(step, sweep=step.sweep + found.sweeps) for step in last.history[1:])),
            sweeps=found.sweeps,
            converged=found.converged and last.converged,
            criterion=found.criterion,
            notes=(*found.notes, f"rounded at {found.objective:.6g}, {last.sweeps} rounds of MERGE-MANY after it"),
        )


Point = list[dict[str, Tensor]]


class _Climb:
    def __init__(self, problem: ManyProblem, settings: UniverseFrankWolfe, reporter: Reporter) -> None:
        self.problem, self.settings, self.reporter = problem, settings, reporter
        self.relaxations = [Relaxation(member) for member in problem.members]
        self.constant = problem.constant
        self.best: list[Element] = [problem.symmetry.identity()] * len(problem.states)
        self.reached = problem.objective(self.best)
        self.history = [MatchStep(0, "", self.reached, 0.0, 0, 0.0)]

    def objective(self, point: Sequence[dict[str, Tensor]]) -> Tensor:
        total = torch.full((), self.constant, dtype=torch.float64, device=self.problem.device)
        for index in range(len(self.problem.members[0].blocks)):
            moved = [relaxation.moved(index, soft) for relaxation, soft in zip(self.relaxations, point, strict=True)]
            together = sum(moved[1:], moved[0])
            total = total + (together.square().sum() - sum(part.square().sum() for part in moved)) / 2
        return total

    @property
    def degree(self) -> int:
        return 2 * self.relaxations[0].degree

    def run(self) -> ManyMatch:
        held = self.relaxations[0].of(self.best[0])
        even = self.settings.start == "barycentre"
        point = [held, *(r.barycentre() if even else r.of(e) for r, e in zip(self.relaxations[1:], self.best[1:], strict=True))]
        iterations, stationary, value, cancelled = 0, False, 0.0, False
        try:
            while iterations < self.settings.max_iterations and not stationary:
                iterations += 1
                point, value, gap = self._step(point, iterations)
                stationary = gap <= self.settings.tolerance * max(1.0, abs(value))
        except Cancelled:
            cancelled = True
        if not cancelled:
            rounded = [r.vertex(soft, e) for r, soft, e in zip(self.relaxations[1:], point[1:], self.best[1:], strict=True)]
            self._offer([self.best[0], *rounded])
        return ManyMatch(
            tuple(self.best),
            self.reached,
            tuple(self.history),
            iterations,
            converged=stationary,
            cancelled=cancelled,
            notes=tuple(f"{name} was left where it is" for name in self.relaxations[0].held),
            criterion={"objective of the soft elements": value},
        )

    def _step(self, point: Point, iteration: int) -> tuple[Point, float, float]:
        leaves = [{n: x.detach().requires_grad_() for n, x in soft.items()} for soft in point[1:]]
        function = self.objective([point[0], *leaves])
        value = float(function.detach())
        flat = [x for soft in leaves for x in soft.values()]
        gradients = iter(torch.autograd.grad(function, flat, allow_unused=True))
        corner, target, gap = [self.best[0]], [point[0]], 0.0
        for relaxation, soft, element in zip(self.relaxations[1:], point[1:], self.best[1:], strict=True):
            scores = {n: torch.zeros_like(x) if (g := next(gradients)) is None else g for n, x in soft.items()}
            corner.append(relaxation.vertex(scores, element))
            target.append(relaxation.of(corner[-1]))
            gap += float(sum((scores[n] * (target[-1][n] - soft[n])).sum() for n in soft))
        end = self._offer(corner)

        def between(at: float) -> Point:
            return [point[0], *(blend(a, b, at) for a, b in zip(point[1:], target[1:], strict=True))]

        step, reached = line_search(value, gap, end, self.degree, lambda at: float(self.objective(between(at))))
        moved = sum(sum(element.units_moved().values()) for element in corner)
        self.history.append(MatchStep(iteration, "all", reached, reached - value, moved, self.reporter.seconds))
        self.reporter.step(iteration=iteration, objective=reached, gap=gap, step=step, best=self.reached)
        return between(step), reached, gap

    def _offer(self, elements: list[Element]) -> float:
        objective = self.problem.objective(elements)
        if objective > self.reached:
            self.best, self.reached = elements, objective
        return objective
