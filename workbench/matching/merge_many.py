"""MERGE-MANY: every model in turn is matched to the mean of the others (Ainsworth et al., arXiv 2209.04836, algorithm 3).

    π_p ← argmax_π ⟨ mean_(q ≠ p) π_q(W_q) , π(W_p) ⟩           for p in a random order, until a whole round moves nothing

Each step raises Σ_(p < q) ⟨π_p(W_p), π_q(W_q)⟩, so it ends, in a local optimum that depends on the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workbench.errors import Cancelled, WorkbenchError
from workbench.matching.many import ManyMatch, ManyProblem, many_matcher, mean_of
from workbench.matching.matcher import MatchStep
from workbench.matching.weights import WeightMatching
from workbench.progress import Progress, Reporter
from workbench.states import StateDict
from workbench.symmetry.element import Element


@many_matcher("merge-many", reference="arXiv:2209.04836")
@dataclass(frozen=True)
class MergeMany:
    """MERGE-MANY: each model in turn to the mean of the others by weight matching. The result depends on the order.

    max_rounds: visits of every model at most; max_sweeps, tolerance: of each weight matching; order: "random" or "given".
    """

    max_rounds: int = 100
    max_sweeps: int = 100
    tolerance: float = 1e-9
    order: str = "random"

    def __post_init__(self) -> None:
        if self.max_rounds < 1 or self.order not in ("random", "given"):
            raise WorkbenchError(
                f"max_rounds={self.max_rounds}, order={self.order!r}", expected='max_rounds ≥ 1, order "random" or "given"'
            )

    def match_many(self, problem: ManyProblem, *, seed: int = 0, progress: Progress | None = None) -> ManyMatch:
        return self.go_on(problem, [problem.symmetry.identity()] * len(problem.states), seed=seed, progress=progress)

    def go_on(
        self, problem: ManyProblem, elements: Sequence[Element], *, seed: int = 0, progress: Progress | None = None
    ) -> ManyMatch:
        """The same from given elements."""
        generator = torch.Generator().manual_seed(seed)
        inner = WeightMatching(max_sweeps=self.max_sweeps, tolerance=self.tolerance, order=self.order)
        elements = list(elements)
        states = [double(state) for state in problem.aligned(elements)]
        reporter, objective = Reporter(progress, "matching"), problem.objective(elements)
        history, rounds, moved, cancelled = [MatchStep(0, "", objective, 0.0, 0, 0.0)], 0, True, False
        while moved and rounds < self.max_rounds and not cancelled:
            rounds, moved = rounds + 1, False
            count = len(elements)
            order = torch.randperm(count, generator=generator).tolist() if self.order == "random" else range(count)
            for p in order:
                others = mean_of([state for q, state in enumerate(states) if q != p])
                drawn = int(torch.randint(2**62, (1,), generator=generator))
                member = problem.members[p].with_anchor(others).starting_at(elements[p])
                try:
                    found = inner.match(member, seed=drawn)
                    gain = found.objective - member.objective(elements[p])
                    if found.element != elements[p] and gain > 0:
                        changed = sum(int((found.element.permutations[n] != o).sum()) for n, o in elements[p].permutations.items())
                        elements[p], moved = found.element, True
                        states[p] = double(problem.symmetry.apply(found.element, problem.states[p]))
                        # Against the mean of K − 1 models: the sum over pairs grows K − 1 times as much.
                        objective += gain * (count - 1)
                        history.append(MatchStep(rounds, f"model {p}", objective, gain * (count - 1), changed, reporter.seconds))
                    reporter.step(round=rounds, objective=objective, gain=gain)
                except Cancelled:
                    cancelled = True
                    break
        return ManyMatch(
            tuple(elements),
            problem.objective(elements),
            tuple(history),
            rounds,
            converged=not moved,
            cancelled=cancelled,
        )


def double(state: StateDict) -> dict[str, torch.Tensor]:
    """The state with its float tensors in float64, so that means do not round."""
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
