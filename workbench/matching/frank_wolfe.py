"""Frank–Wolfe matching: all factors at once, over the convex hull of the group (Crisostomi et al., arXiv 2405.17897).

    f(X) = Σ_k ⟨A_k, X(B_k)⟩ ,   V = argmax_(V a vertex) ⟨∇f(X), V⟩ ,   X ← (1 − α) X + α V ,   α = argmax_[0, 1] f((1 − α) X + α V)

f is a polynomial along a segment, of the number of axes that one tensor block moves along (2 for plain layers), so the step is
exact. The answer is rounded to the nearest vertex and then improved by coordinate descent. There is nothing random in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from workbench.errors import Cancelled, WorkbenchError
from workbench.matching.matcher import Match, MatchStep, matcher
from workbench.matching.problem import MatchingProblem
from workbench.matching.relaxation import Relaxation
from workbench.matching.weights import WeightMatching
from workbench.progress import Progress, Reporter
from workbench.symmetry.element import Element


@matcher("frank-wolfe", reference="arXiv:2405.17897")
@dataclass(frozen=True)
class FrankWolfe:
    """Frank–Wolfe over soft permutations of all factors at once, rounded: no data, nothing random.

    start: "barycentre" (every unit spread evenly), "identity", or "both" (the better answer); max_iterations: steps at most;
    tolerance: it stops where the gap ⟨∇f(X), V − X⟩ is below tolerance · max(1, |f|); polish: coordinate descent from the rounded
    answer; include_biases: whether one-axis tensors pull on the match. A start that is handed over takes the place of its own.
    """

    start: Literal["barycentre", "identity", "both"] = "barycentre"
    max_iterations: int = 200
    tolerance: float = 1e-4
    polish: bool = True
    include_biases: bool = True

    def __post_init__(self) -> None:
        if self.start not in ("barycentre", "identity", "both"):
            raise WorkbenchError(f"start is {self.start!r}", expected="barycentre, identity or both")
        if self.max_iterations < 1 or not self.tolerance >= 0:
            raise WorkbenchError(
                f"max_iterations={self.max_iterations}, tolerance={self.tolerance}", expected="max_iterations ≥ 1, tolerance ≥ 0"
            )

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        if not self.include_biases:
            problem = problem.without_biases()
        starts: tuple[str | Element, ...] = ("barycentre", "identity") if self.start == "both" else (self.start,)
        if problem.start is not None:
            starts = (problem.searched(problem.start),)
        found: list[Match] = []
        for start in starts:
            found.append(_Climb(problem, self, progress).run(start))
            if found[-1].cancelled:
                break
        best = max(found, key=lambda match: match.objective)
        reached = tuple(match.objective for match in found) if len(found) > 1 else ()
        return replace(best, cancelled=found[-1].cancelled, starts=reached)


class _Climb:
    """One run from one start."""

    def __init__(self, problem: MatchingProblem, settings: FrankWolfe, progress: Progress | None) -> None:
        self.problem, self.settings, self.progress = problem, settings, progress
        self.reporter = Reporter(progress, "matching")
        self.relaxation = Relaxation(problem)
        self.best = problem.symmetry.identity()
        self.reached = problem.objective(self.best)
        self.history = [MatchStep(0, "", self.reached, 0.0, 0, 0.0)]

    def run(self, start: str | Element) -> Match:
        """Climb, round, polish. A cancelled run gives the best vertex it met."""
        if isinstance(start, Element):
            self._offer(start)
        soft = self.relaxation.barycentre() if start == "barycentre" else self.relaxation.of(self.best)
        iterations, stationary, soft_objective = 0, False, 0.0
        try:
            while iterations < self.settings.max_iterations and not stationary:
                iterations += 1
                soft, soft_objective, gap = self._step(soft, iterations)
                stationary = gap <= self.settings.tolerance * max(1.0, abs(soft_objective))
            self._offer(self.relaxation.vertex(soft, self.best))
            if self.settings.polish:
                return self._polished(iterations, soft_objective, stationary)
        except Cancelled:
            return self._result(iterations, soft_objective, False, cancelled=True)
        return self._result(iterations, soft_objective, stationary)

    def _step(self, soft: dict[str, Tensor], iteration: int) -> tuple[dict[str, Tensor], float, float]:
        leaves = {name: point.detach().requires_grad_() for name, point in soft.items()}
        differentiable = self.relaxation.objective(leaves)
        value = float(differentiable.detach())
        gradients = torch.autograd.grad(differentiable, list(leaves.values()), allow_unused=True)
        scores = {
            name: torch.zeros_like(point) if gradient is None else gradient
            for (name, point), gradient in zip(leaves.items(), gradients, strict=True)
        }
        corner = self.relaxation.vertex(scores, self.best)
        end = self._offer(corner)
        target = self.relaxation.of(corner)
        gap = float(sum((scores[name] * (target[name] - soft[name])).sum() for name in soft))
        step, reached = line_search(
            value, gap, end, self.relaxation.degree, lambda at: float(self.relaxation.objective(blend(soft, target, at)))
        )
        moved = blend(soft, target, step)
        self.history.append(
            MatchStep(iteration, "all", reached, reached - value, sum(corner.units_moved().values()), self.reporter.seconds)
        )
        self.reporter.step(iteration=iteration, objective=reached, gap=gap, step=step, best=self.reached)
        return moved, reached, gap

    def _offer(self, element: Element) -> float:
        objective = self.problem.objective(element)
        if objective > self.reached:
            self.best, self.reached = element, objective
        return objective

    def _polished(self, iterations: int, soft_objective: float, stationary: bool) -> Match:
        """Coordinate descent from the rounded answer; without it a single move may still gain."""
        inner = WeightMatching(order="given")
        last = inner.match(self.problem.starting_at(self.best), progress=self.progress)
        rounded, self.best, self.reached = self.reached, last.element, last.objective
        self.history += [replace(step, sweep=step.sweep + iterations) for step in last.history[1:]]
        converged = stationary and last.converged
        return self._result(
            iterations,
            soft_objective,
            converged,
            cancelled=last.cancelled,
            notes=[*last.notes, f"rounded at {rounded:.6g}, {last.sweeps} sweeps of coordinate descent after it"],
        )

    def _result(
        self, iterations: int, soft_objective: float, converged: bool, *, cancelled: bool = False, notes: list[str] | None = None
    ) -> Match:
        held = [f"{name} was left where it is: its dependent factors depend on others too" for name in self.relaxation.held]
        return Match(
            self.best,
            self.reached,
            tuple(self.history),
            iterations,
            converged=converged,
            cancelled=cancelled,
            notes=(*held, *(note for note in notes or [] if note not in held)),
            criterion={"objective of the soft element": soft_objective},
        )


def blend(first: dict[str, Tensor], second: dict[str, Tensor], at: float) -> dict[str, Tensor]:
    """(1 − at) · first + at · second, factor by factor."""
    return {name: (1 - at) * point + at * second[name] for name, point in first.items()}


def line_search(
    value: float, slope: float, end: float, degree: int, function: Callable[[float], float]
) -> tuple[float, float]:
    """The argmax over [0, 1] of a polynomial p of at most ``degree``, and the value there.

    value, slope, end: p(0), p′(0) and p(1), which make p(t) = value + slope·t + c t² where the degree is 2; function: p itself,
    called at degree − 2 further points.
    """
    degree = max(degree, 2)
    nodes = np.linspace(0, 1, degree)[1:]
    values = np.array([function(float(t)) for t in nodes[:-1]] + [end])
    powers = np.arange(2, degree + 1)
    higher = np.linalg.solve(nodes[:, None] ** powers, values - value - slope * nodes)
    polynomial = np.polynomial.Polynomial([value, slope, *higher])
    critical = polynomial.deriv().roots()
    inside = [float(root.real) for root in critical if abs(root.imag) < 1e-9 and 0 < root.real < 1]
    best = max([0.0, *inside, 1.0], key=polynomial)
    return best, float(polynomial(best))
