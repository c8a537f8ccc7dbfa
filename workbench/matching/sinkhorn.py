"""Sinkhorn re-basin: gradient descent over soft permutations (Peña et al., arXiv 2212.12042).

    min over Z of cost(X) ,   X_p = S_τ(Z_p) for every factor p        (``sinkhorn_operator``; inside nests X_f = P_g ⊙ S_τ(Z_f))

cost: "weights"   −⟨A, X(B)⟩ / (‖A‖ ‖B‖)            no data
      "midpoint"  L(½ (A + X(B)))                   labels
      "random"    L((1 − t) A + t X(B)), t ~ U(0,1)  labels

A soft element is no symmetry: the loss of X(B) is not that of B. So after every step X is rounded to the nearest element, which
is judged (objective, or barrier at the midpoint on a fixed set), and the best one is returned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from workbench.errors import Cancelled, WorkbenchError
from workbench.matching.data import NO_DATA, require_data
from workbench.matching.matcher import Match, MatchStep, matcher
from workbench.matching.problem import MatchingProblem
from workbench.matching.relaxation import Relaxation, SoftState
from workbench.matching.sinkhorn_operator import sinkhorn
from workbench.matching.task_loss import TaskLoss, midpoint
from workbench.matching.weights import WeightMatching
from workbench.progress import Progress, Reporter
from workbench.symmetry.element import Element


@matcher("sinkhorn", reference="arXiv:2212.12042")
@dataclass(frozen=True)
class SinkhornMatching:
    """Sinkhorn re-basin: soft permutations by gradient descent. By weights it needs no data; by midpoint or random points, labels.

    cost: "weights", "midpoint" (loss half-way) or "random" (loss at random points); steps: of Adam on the scores Z, at most;
    lr: its rate; patience: it stops after so many steps without a better element; temperature: τ of the operator;
    normalisations: of rows and columns at most; noise: standard deviation of the scores at the start, beside 1 for where the start
    puts a unit; batch_size: examples per step of a loss; judged: size of the fixed set; polish: by weights, coordinate descent at
    the end.
    """

    cost: Literal["weights", "midpoint", "random"] = "weights"
    steps: int = 200
    patience: int = 20
    lr: float = 0.3
    temperature: float = 1.0
    normalisations: int = 100
    noise: float = 0.1
    batch_size: int = 200
    judged: int = 2000
    polish: bool = True

    def __post_init__(self) -> None:
        if self.cost not in ("weights", "midpoint", "random"):
            raise WorkbenchError(f"cost is {self.cost!r}", expected="weights, midpoint or random")
        if min(self.steps, self.patience, self.normalisations, self.batch_size, self.judged) < 1:
            raise WorkbenchError(
                f"steps={self.steps}, patience={self.patience}, normalisations={self.normalisations}, "
                f"batch_size={self.batch_size}, judged={self.judged}",
                expected="1 or more",
            )
        if not (self.lr > 0 and self.temperature > 0 and self.noise >= 0):
            raise WorkbenchError(
                f"lr={self.lr}, temperature={self.temperature}, noise={self.noise}", expected="lr and temperature > 0, noise ≥ 0"
            )

    @property
    def needs(self) -> str:
        return "nothing" if self.cost == "weights" else "labels"

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        search = _Search(problem, self, Reporter(progress, "matching", total=self.steps), seed)
        try:
            search.run()
        except Cancelled:
            search.cancelled = True
        found = search.result()
        if self.cost != "weights" or not self.polish or search.cancelled:
            return found
        last = WeightMatching(order="given").match(problem.starting_at(found.element), progress=progress)
        return replace(
            found,
            element=last.element,
            objective=last.objective,
            history=(*found.history, *(replace(step, sweep=step.sweep + self.steps) for step in last.history[1:])),
            converged=last.converged,
            cancelled=last.cancelled,
            notes=(*found.notes, f"rounded at {found.objective:.6g}, {last.sweeps} sweeps of coordinate descent after it"),
        )


class SoftElements:
    """Soft elements from unconstrained scores: one tensor of scores per factor, in the shape of its soft element."""

    def __init__(self, relaxation: Relaxation, settings: SinkhornMatching) -> None:
        self.relaxation, self.settings = relaxation, settings

    def scores(self, start: Element, generator: torch.Generator) -> dict[str, Tensor]:
        """Scores that lean towards ``start``, with noise."""
        lean = self.relaxation.of(start)
        noise = {n: torch.randn(point.shape, generator=generator, dtype=torch.float64) for n, point in lean.items()}
        return {n: (point + self.settings.noise * noise[n].to(point.device)).requires_grad_() for n, point in lean.items()}

    def __call__(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        """X from Z. Where units may be negated, the scores of a place are shared out among the signs by a softmax."""
        settings, out = self.settings, {}
        for name in (*(n for n in scores if n not in self.relaxation.outer), *self.relaxation.outer):
            logs = scores[name] / settings.temperature
            places = settings.temperature * logs.logsumexp(0)
            soft = sinkhorn(places, temperature=settings.temperature, iterations=settings.normalisations)
            point = soft * logs.softmax(0)
            if name in self.relaxation.outer:
                point = point * out[self.relaxation.outer[name]].sum(0)[..., None, None]
            out[name] = point
        return out


class _Search:
    def __init__(self, problem: MatchingProblem, settings: SinkhornMatching, reporter: Reporter, seed: int) -> None:
        self.problem, self.settings, self.reporter = problem, settings, reporter
        self.relaxation = Relaxation(problem)
        self.elements = SoftElements(self.relaxation, settings)
        self.generator = torch.Generator().manual_seed(seed)
        self.loss: TaskLoss | None = None
        self.data_used = NO_DATA
        if settings.cost != "weights":
            data = require_data(problem.data, f"Sinkhorn matching by {settings.cost} points", labels=True)
            self.loss, self.data_used = TaskLoss(data, problem.device, judged=settings.judged, seed=seed), data.words()
            self.state = SoftState(problem)
            self.anchor = self.loss.placed(problem.anchor)
            ends = (self.anchor, self.loss.placed(problem.moving))
            self.ends = sum(self.loss.judged(weights) for weights in ends) / 2
        self.scale = self._norm(0) * self._norm(1) or 1.0
        start = problem.searched(problem.start) if problem.start is not None else problem.symmetry.identity()
        self.best, self.worth = start, self._worth(start)
        self.history = [MatchStep(0, "", problem.objective(start), 0.0, 0, reporter.seconds)]
        self.steps, self.found_at, self.cancelled, self.soft_cost = 0, 0, False, float("nan")

    def _norm(self, side: int) -> float:
        return sum(float(pair[side].view.square().sum()) for pair in self.problem.blocks) ** 0.5

    def _worth(self, element: Element) -> float:
        """What elements are compared by: larger is better."""
        if self.loss is None:
            return self.problem.objective(element)
        moved = self.loss.placed(self.problem.symmetry.apply(element, self.problem.moving))
        return self.ends - self.loss.judged(midpoint(self.anchor, moved))

    def run(self) -> None:
        scores = self.elements.scores(self.best, self.generator)
        optimiser = torch.optim.Adam(list(scores.values()), lr=self.settings.lr)
        batches = iter(())
        for step in range(1, self.settings.steps + 1):
            soft = self.elements(scores)
            if self.loss is None:
                cost = -self.relaxation.objective(soft) / self.scale
            else:
                rows = next(batches, None)
                if rows is None:
                    batches = self.loss.batches(self.settings.batch_size, self.generator)
                    rows = next(batches)
                at = 0.5 if self.settings.cost == "midpoint" else float(torch.rand((), generator=self.generator))
                cost = self.loss(midpoint(self.anchor, self.state(soft), at), rows)
            optimiser.zero_grad()
            cost.backward()
            optimiser.step()
            self.steps, self.soft_cost = step, float(cost.detach())
            changed = self._offer(self.relaxation.vertex({n: point.detach() for n, point in soft.items()}, self.best))
            self.reporter.step(**{"cost": self.soft_cost, "best": self.worth, "units changed": changed})
            if step - self.found_at >= self.settings.patience:
                break

    def _offer(self, element: Element) -> int:
        if element == self.best:
            return 0
        worth = self._worth(element)
        if worth <= self.worth:
            return 0
        changed = sum(int((element.permutations[n] != old).sum()) for n, old in self.best.permutations.items())
        objective = self.problem.objective(element)
        self.history.append(
            MatchStep(self.steps, "all", objective, objective - self.history[-1].objective, changed, self.reporter.seconds)
        )
        self.best, self.worth, self.found_at = element, worth, self.steps
        return changed

    def result(self) -> Match:
        criterion = {"cost of the soft element": self.soft_cost}
        if self.loss is not None:
            criterion["midpoint loss above the mean of the ends"] = -self.worth
        notes = [f"{name} was left where it is: its dependent factors depend on others too" for name in self.relaxation.held]
        if self.loss is not None and self.loss.words:
            notes.append(self.loss.words)
        return Match(
            self.best,
            self.problem.objective(self.best),
            tuple(self.history),
            self.steps,
            converged=self.steps - self.found_at >= self.settings.patience,
            cancelled=self.cancelled,
            data_used=self.data_used,
            notes=tuple(notes),
            criterion=criterion,
        )
