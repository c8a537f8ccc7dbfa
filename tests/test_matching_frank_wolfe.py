"""Frank–Wolfe and the hull it works on: brute force, vertices and polynomials as oracles; planted elements of residual nets."""

import itertools

import numpy as np
import pytest
import torch
from benchmarks.factored_models import Decoder, Encoder, Experts, gaussian_state
from test_matching import gaussian_mlp, residual, unrelated
from torch import nn

from workbench.matching import FrankWolfe, MatchingProblem, WeightMatching, align
from workbench.matching.frank_wolfe import blend, line_search
from workbench.matching.relaxation import Relaxation, SoftState
from workbench.symmetry import discover_symmetry


class Grouped(nn.Sequential):
    """Units that may be negated, channels in groups, running statistics."""

    def __init__(self):
        super().__init__(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh()),
            *(nn.Conv2d(8, 12, 3, groups=4), nn.Tanh(), nn.Flatten(), nn.Linear(12 * 4, 10)),
        )

    def example(self):
        return (torch.randn(2, 3, 4, 4),)


class Recurrent(nn.Module):
    """A square recurrent matrix: one factor on two axes of one tensor."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 9), nn.Linear(9, 3)

    def forward(self, x):
        return self.head(self.cell(x)[0])

    def example(self):
        return (torch.randn(5, 2, 4),)


MODELS = {
    "multi-head": (Encoder, False),
    "grouped-query, rotary": (Decoder, False),
    "experts": (Experts, False),
    "grouped convolution": (Grouped, False),
    "recurrent": (Recurrent, False),
    "recurrent, signs": (Recurrent, True),
    "heads, signs": (Decoder, True),
}


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    build, signs = MODELS[request.param]
    model = build()
    symmetry = discover_symmetry(model, model.example(), signs=signs)
    a, b = (gaussian_state(model, seed) for seed in (0, 1))
    a, b = ({n: t.abs() if n.endswith("running_var") else t for n, t in state.items()} for state in (a, b))
    return symmetry, a, b


def test_a_vertex_is_its_element(case):
    symmetry, a, b = case
    problem = MatchingProblem(symmetry, a, b)
    relaxation = Relaxation(problem)
    for seed in range(3):
        element = problem.searched(symmetry.sample(seed))
        soft = relaxation.of(element)
        assert float(relaxation.objective(soft)) == pytest.approx(problem.objective(element), rel=1e-12, abs=1e-9)
        moved, applied = SoftState(problem)(soft), symmetry.apply(element, b)
        assert all(torch.allclose(moved[name], applied[name].double(), rtol=0, atol=1e-12) for name in applied)
        # Where every score is the element's own, the best vertex is the element; the control's is another one.
        found = relaxation.vertex(soft, symmetry.identity())
        assert problem.objective(found) == pytest.approx(problem.objective(element), rel=1e-12)
        other = relaxation.vertex(relaxation.of(symmetry.identity()), symmetry.identity())
        assert problem.objective(other) != pytest.approx(problem.objective(element), rel=1e-3)


def test_the_barycentre_lies_in_the_hull(case):
    symmetry, a, b = case
    relaxation = Relaxation(MatchingProblem(symmetry, a, b))
    for name, point in relaxation.barycentre().items():
        copies = point.sum(0)
        if name in relaxation.outer:
            copies = copies * symmetry.groups[relaxation.outer[name]].size
        assert torch.allclose(copies.sum(-1), torch.ones(()).double(), atol=1e-12)
        assert torch.allclose(copies.sum(-2), torch.ones(()).double(), atol=1e-12)


def test_the_objective_is_a_polynomial_of_its_degree(case):
    """Along a segment; the control fits one degree less."""
    symmetry, a, b = case
    problem = MatchingProblem(symmetry, a, b)
    relaxation = Relaxation(problem)
    first, second = relaxation.barycentre(), relaxation.of(problem.searched(symmetry.sample(5)))
    at = np.linspace(0, 1, 9)
    values = np.array([float(relaxation.objective(blend(first, second, t))) for t in at])
    fits = [np.abs(np.polynomial.Polynomial.fit(at, values, d)(at) - values).max() for d in (relaxation.degree, 1)]
    assert fits[0] < 1e-9 * np.abs(values).max()
    assert fits[1] > 1e-6 * np.abs(values).max()


@pytest.mark.parametrize("degree", [2, 3, 4, 6])
def test_the_step_is_the_best_one(degree):
    generator = np.random.default_rng(degree)
    for _ in range(20):
        polynomial = np.polynomial.Polynomial(generator.normal(size=degree + 1))
        slope = float(polynomial.deriv()(0))
        at, value = line_search(float(polynomial(0)), slope, float(polynomial(1)), degree, lambda t, p=polynomial: float(p(t)))
        grid = polynomial(np.linspace(0, 1, 2001))
        assert value >= grid.max() - 1e-9
        assert value == pytest.approx(float(polynomial(at)), abs=1e-8)


@pytest.mark.parametrize("start", ["identity", "barycentre"])
def test_planted_elements_of_deep_residual_nets(start):
    """All of 20, where plain coordinate descent from the identity misses several."""
    reached = {"frank-wolfe": 0, "plain": 0}
    for seed in range(20):
        a, symmetry = residual(seed)
        planted = symmetry.sample(seed + 100)
        b = symmetry.apply(planted, a)
        best = sum(float(t.double().square().sum()) for t in a.values())
        for name, method in (("frank-wolfe", FrankWolfe(start=start)), ("plain", WeightMatching())):
            if name == "frank-wolfe" or start == "identity":
                reached[name] += align(symmetry, a, b, method, seed=seed).objective == pytest.approx(best, rel=1e-9)
    assert reached["frank-wolfe"] == 20
    assert reached["plain"] < 20


def test_planted_elements_of_factored_groups(case):
    symmetry, a, _ = case
    for seed in range(2):
        b = symmetry.apply(MatchingProblem(symmetry, a, a).searched(symmetry.sample(seed)), a)
        problem = MatchingProblem(symmetry, a, b)
        found = align(symmetry, a, b, FrankWolfe(start="both"))
        assert found.objective == pytest.approx(sum(float(a[n].square().sum()) for n in problem.names), rel=1e-9)
        assert len(found.starts) == 2


def test_never_above_brute_force_and_often_there():
    hits = {"barycentre": 0, "identity": 0, "no search": 0}
    for seed in range(20):
        a, b, symmetry = unrelated([4, 3, 3, 3], seed)
        problem = MatchingProblem(symmetry, a, b)
        orders = [torch.tensor(p) for p in itertools.permutations(range(3))]
        best = max(problem.objective(symmetry.element({"P0": p, "P1": q})) for p in orders for q in orders)
        for start in ("barycentre", "identity"):
            found = align(symmetry, a, b, FrankWolfe(start=start)).objective
            assert found <= best + 1e-9
            hits[start] += found == pytest.approx(best, abs=1e-9)
        hits["no search"] += align(symmetry, a, b, "identity").objective == pytest.approx(best, abs=1e-9)
    assert min(hits["barycentre"], hits["identity"]) >= 14
    assert hits["no search"] <= 4


def test_nothing_is_random_and_the_objective_rises():
    a, b, symmetry = unrelated([20, 24, 24, 6], 0)
    runs = [align(symmetry, a, b, FrankWolfe(), seed=seed) for seed in range(3)]
    assert len({run.element for run in runs}) == 1
    # Control: coordinate descent in random orders ends in different places.
    assert len({align(symmetry, a, b, WeightMatching(), seed=seed).element for seed in range(6)}) > 1
    history = runs[0].history
    climb = [step.objective for step in history if step.factor == "all"]
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(climb))
    assert runs[0].objective >= align(symmetry, a, b, FrankWolfe(polish=False)).objective - 1e-9


def test_better_than_plain_coordinate_descent_on_unrelated_networks():
    better = 0
    for seed in range(6):
        a, b, symmetry = unrelated([30, 32, 32, 32, 8], seed)
        plain = np.mean([align(symmetry, a, b, WeightMatching(), seed=s).objective for s in range(3)])
        better += align(symmetry, a, b, FrankWolfe()).objective > plain
    assert better >= 5


def test_a_plain_specification_is_enough():
    a, symmetry = gaussian_mlp([10, 16, 16, 4], 0)
    planted = symmetry.sample(1)
    assert align(symmetry, a, symmetry.apply(planted, a), "frank-wolfe").element == planted.inverse()
