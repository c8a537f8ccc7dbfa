"""Straight-through estimator matching: gradient descent on the midpoint's loss (Ainsworth et al., arXiv 2209.04836, section 3.3).

    min over Θ̃ of L(½ (A + π_Θ̃(B))) ,      π_Θ̃ = argmax_π ⟨Θ̃, π(B)⟩  (weight matching, from the last answer)

The forward pass uses π_Θ̃(B), the backward pass takes the projection for the identity; Θ̃ starts at A, so that the first candidate
is plain weight matching. Every new element is judged on a fixed set of examples and the best one is returned. A low loss found in
this way says nothing about closeness in weights: see the singular vectors of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.errors import Cancelled, WorkbenchError
from workbench.matching.data import require_data
from workbench.matching.matcher import Match, MatchStep, matcher
from workbench.matching.problem import MatchingProblem
from workbench.matching.task_loss import TaskLoss, midpoint
from workbench.matching.weights import WeightMatching
from workbench.progress import Progress, Reporter
from workbench.symmetry.element import Element


@matcher("straight-through", reference="arXiv:2209.04836")
@dataclass(frozen=True)
class StraightThrough:
    """Straight-through estimator: lowers the midpoint's loss by gradients, needs labels; the slowest, often the lowest barrier.

    epochs, batch_size: passes over the examples and examples per step; lr, momentum: of the gradient descent on Θ̃;
    judged: size of the fixed set on which candidates are compared; max_sweeps: of the projection at every step.
    """

    epochs: int = 20
    batch_size: int = 100
    lr: float = 0.1
    momentum: float = 0.9
    judged: int = 2000
    max_sweeps: int = 3

    needs = "labels"

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size, self.judged, self.max_sweeps) < 1 or not self.lr > 0 or not 0 <= self.momentum < 1:
            raise WorkbenchError(
                f"epochs={self.epochs}, batch_size={self.batch_size}, judged={self.judged}, max_sweeps={self.max_sweeps}, "
                f"lr={self.lr}, momentum={self.momentum}",
                expected="whole numbers of 1 or more, lr > 0, momentum in [0, 1)",
            )

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        data = require_data(problem.data, "The straight-through estimator", labels=True)
        loss = TaskLoss(data, problem.device, judged=self.judged, seed=seed)
        steps = self.epochs * max(1, data.size // min(self.batch_size, data.size))
        search = _Descent(problem, self, loss, Reporter(progress, "matching", total=steps), seed)
        try:
            search.run()
        except Cancelled:
            search.cancelled = True
        return search.result(data.words())


class _Descent:
    def __init__(
        self, problem: MatchingProblem, settings: StraightThrough, loss: TaskLoss, reporter: Reporter, seed: int
    ) -> None:
        self.problem, self.settings, self.loss, self.reporter = problem, settings, loss, reporter
        self.generator = torch.Generator().manual_seed(seed)
        self.anchor = loss.placed(problem.anchor)
        ends = (self.anchor, loss.placed(problem.moving))
        self.ends = sum(loss.judged(weights) for weights in ends) / 2
        self.element = problem.start if problem.start is not None else problem.symmetry.identity()
        self.best, self.lowest = self.element, self._judge(self.element)
        self.history = [MatchStep(0, "", problem.objective(self.element), 0.0, 0, reporter.seconds)]
        self.steps, self.seen, self.cancelled = 0, 1, False

    def _moved(self, element: Element) -> dict[str, Tensor]:
        return self.loss.placed(self.problem.symmetry.apply(element, self.problem.moving))

    def _judge(self, element: Element) -> float:
        return self.loss.judged(midpoint(self.anchor, self._moved(element))) - self.ends

    def run(self) -> None:
        settings = self.settings
        free = {n: t.clone() for n, t in self.anchor.items() if n in self.problem.names and t.is_floating_point()}
        speed = {name: torch.zeros_like(tensor) for name, tensor in free.items()}
        projection = WeightMatching(max_sweeps=settings.max_sweeps, order="given")
        moved = self._moved(self.element)
        for epoch in range(settings.epochs):
            for rows in self.loss.batches(settings.batch_size, self.generator):
                here = self.problem.with_anchor({**self.problem.anchor, **free}).starting_at(self.element)
                element = projection.match(here).element
                changed = sum(int((element.permutations[n] != old).sum()) for n, old in self.element.permutations.items())
                if element != self.element or self.steps == 0:
                    self.element, moved = element, self._moved(element)
                    self._offer(element)
                middle = midpoint(self.anchor, moved)
                leaves = {name: middle[name].detach().requires_grad_() for name in free}
                value = self.loss({**middle, **leaves}, rows)
                gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
                for (name, tensor), gradient in zip(free.items(), gradients, strict=True):
                    if gradient is not None:
                        # The midpoint holds half of π(B), and the projection passes gradients on as they are.
                        speed[name].mul_(settings.momentum).add_(gradient, alpha=0.5)
                        tensor.sub_(speed[name], alpha=settings.lr)
                self.steps += 1
                self.reporter.step(
                    **{"epoch": epoch + 1, "midpoint loss": float(value.detach()), "barrier": self.lowest, "units changed": changed}
                )

    def _offer(self, element: Element) -> None:
        self.seen += 1
        barrier = self._judge(element)
        gain = self.lowest - barrier
        if gain > 0:
            objective = self.problem.objective(element)
            moved = sum(int((element.permutations[n] != old).sum()) for n, old in self.best.permutations.items())
            self.best, self.lowest = element, barrier
            self.history.append(MatchStep(self.steps, "all", objective, 0.0, moved, self.reporter.seconds))

    def result(self, words: str) -> Match:
        notes = [f"{self.seen} elements judged on {len(self.loss.fixed)} examples", self.loss.words]
        return Match(
            self.best,
            self.problem.objective(self.best),
            tuple(self.history),
            self.steps,
            converged=False,
            cancelled=self.cancelled,
            data_used=words,
            notes=tuple(note for note in notes if note),
            criterion={"midpoint loss above the mean of the ends": self.lowest},
        )
