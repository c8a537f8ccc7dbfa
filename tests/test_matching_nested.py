"""The nested assignment against brute force and against the same thing done pair by pair."""

import itertools
import math

import pytest
import torch
from benchmarks.factored_models import Decoder, Encoder, Experts, gaussian_state
from benchmarks.nested_reference import outer_factor, pair_by_pair
from torch import nn

from workbench.matching import MatchingProblem, WeightMatching, align, wreath
from workbench.symmetry import discover_symmetry


def problem_of(model, seed, inputs=None):
    symmetry = discover_symmetry(model, inputs or model.example())
    return MatchingProblem(symmetry, gaussian_state(model, seed), gaussian_state(model, seed + 100))


@pytest.mark.parametrize("model", [Encoder(width=8, heads=3, dk=2, dv=2), Experts(width=6, experts=3, hidden=3)])
def test_one_visit_finds_the_best_joint_move(model):
    """All 3! · (n!)^3 · … arrangements of the outer factor and what is inside, the others held. Control: the start is worse."""
    problem = problem_of(model, 0)
    symmetry, factor = problem.symmetry, outer_factor(problem.symmetry)
    start = symmetry.sample(5)
    assert wreath.separable(problem, factor)
    best = -math.inf
    dependents = problem.dependents[factor]
    inner = {n: list(itertools.permutations(range(symmetry.groups[n].size))) for n in dependents}
    for outer in itertools.permutations(range(3)):
        total = start.permutations | {factor: torch.tensor(outer)}
        # Copies do not interact: each place takes its own best arrangement.
        for to in range(3):
            choices = []
            for rows in itertools.product(*inner.values()):
                for name, row in zip(dependents, rows, strict=True):
                    total[name] = total[name].clone()
                    total[name][to] = torch.tensor(row)
                choices.append((problem.objective(symmetry.element(total)), rows))
            for name, row in zip(dependents, max(choices)[1], strict=True):
                total[name][to] = torch.tensor(row)
        best = max(best, problem.objective(symmetry.element(total)))
    found = problem.objective(wreath.propose(problem, factor, start).element)
    assert found == pytest.approx(best, abs=1e-9)
    assert problem.objective(start) < best - 1


@pytest.mark.parametrize("kept", [2**27, 0])
@pytest.mark.parametrize("seed", range(3))
def test_asking_for_few_inner_problems_gives_the_same_answer(monkeypatch, kept, seed):
    """Also where score tables are too large to keep."""
    monkeypatch.setattr(wreath, "KEPT_ENTRIES", kept)
    for model in (Encoder(heads=6, dk=4, dv=3), Experts(experts=7, hidden=5)):
        problem = problem_of(model, seed)
        factor, start = outer_factor(problem.symmetry), problem.symmetry.sample(seed)
        lazy, full = wreath.propose(problem, factor, start).element, pair_by_pair(problem, factor, start)
        assert problem.objective(lazy) == pytest.approx(problem.objective(full), abs=1e-9)
        assert lazy == full


def test_fewer_inner_problems_are_solved_where_the_copies_differ(monkeypatch):
    model = Encoder(heads=6, dk=8, dv=8)
    symmetry = discover_symmetry(model, model.example())
    a = gaussian_state(model, 0)
    factor = outer_factor(symmetry)
    problem = MatchingProblem(symmetry, a, symmetry.apply(symmetry.sample(1).restrict([factor]), a))
    asked = []
    settle = wreath._Nested._settle
    monkeypatch.setattr(wreath._Nested, "_settle", lambda self, to, source: (asked.append((to, source)), settle(self, to, source)))
    wreath.propose(problem, factor, symmetry.identity())
    assert len(asked) == len(set(asked)) < 20 < 36


def test_an_exact_visit_is_not_repeated():
    """After the heads moved, they and what is inside them wait only for a neighbour that moves."""
    model = Encoder()
    symmetry = discover_symmetry(model, model.example())
    a = gaussian_state(model, 0)
    factor = outer_factor(symmetry)
    inside = [n for n, g in symmetry.groups.items() if factor in g.over]
    b = symmetry.apply(symmetry.sample(2).restrict([factor, *inside]), a)
    found = align(symmetry, a, b, WeightMatching(order="given"))
    assert found.distance_after == 0
    visits = [step.factor for step in found.history[1:]]
    assert visits.count(factor) <= 2, visits


class Grouped(nn.Module):
    """A grouped convolution: its tensor holds both dependent factors, so an inner optimum is a descent of its own."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.head = nn.Conv2d(1, 12, 3), nn.Conv2d(12, 12, 3, groups=3), nn.Linear(12, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv2(torch.relu(self.conv1(x)))).mean((2, 3)))


def test_coupled_insides_gain_and_say_that_they_are_not_exact():
    image = (torch.randn(2, 1, 8, 8),)
    for model, inputs in ((Grouped(), image), (Decoder(layers=1), None)):
        problem = problem_of(model, 0, inputs)
        symmetry = problem.symmetry
        factor = outer_factor(symmetry)
        assert not wreath.separable(problem, factor)
        for seed in range(4):
            start = symmetry.sample(seed)
            after = wreath.propose(problem, factor, start).element
            assert problem.objective(after) > problem.objective(start)
            assert all(
                torch.equal(after.permutations[n], p)
                for n, p in start.permutations.items()
                if n != factor and n not in problem.dependents[factor]
            )


def test_the_anchored_start_covers_outer_factors():
    """From it the first sweep changes nothing more on a planted pair. Control: from the identity it does."""
    for model in (Encoder(), Decoder(), Experts()):
        symmetry = discover_symmetry(model, model.example())
        a = gaussian_state(model, 0)
        b = symmetry.apply(symmetry.sample(3), a)
        changed = {
            start: sum(step.units_changed for step in align(symmetry, a, b, WeightMatching(start=start)).history)
            for start in ("anchored", "identity")
        }
        assert changed["anchored"] == 0
        assert changed["identity"] > 0
