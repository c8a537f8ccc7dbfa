"""Assignment solvers against SciPy: cold, warm, from wrong potentials, with ties; their certificate; weight matching with them."""

import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from test_matching import gaussian_mlp, residual

from workbench.errors import WorkbenchError
from workbench.matching import MatchingProblem, WeightMatching, align
from workbench.matching import assignment as module
from workbench.matching.assignment import Assigner, assign
from workbench.matching.auction import auction
from workbench.matching.lap import available, solve_assignment
from workbench.matching.problem import CostMatrices

pytestmark = pytest.mark.skipif(not available(), reason="needs numba")

KINDS = {
    "normal": lambda g, n: g.normal(size=(n, n)),
    "whole numbers": lambda g, n: g.integers(0, 4, size=(n, n)).astype(float),
    "rank one": lambda g, n: np.outer(g.normal(size=n), g.normal(size=n)),
    "equal": lambda g, n: np.zeros((n, n)),
    "twin rows": lambda g, n: np.repeat(g.normal(size=(n, n)), 2, axis=0)[:n],
    "huge": lambda g, n: 1e8 * g.normal(size=(n, n)),
}


def best(cost):
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", ["cold", "its own", "wrong", "not finite"])
def test_equal_to_scipy(kind, start):
    generator = np.random.default_rng(len(kind))
    for n in (1, 2, 3, 7, 20, 45):
        cost = KINDS[kind](generator, n)
        scale = np.abs(cost).max() + 1
        options = {}
        if start == "its own":
            first = solve_assignment(cost)
            options = {"potentials": first.potentials, "columns": first.columns}
        elif start != "cold":
            v = scale * generator.normal(size=n) if start == "wrong" else np.full(n, np.nan)
            options = {"potentials": v, "columns": generator.permutation(n)}
        found = solve_assignment(cost, **options)
        assert sorted(found.columns) == list(range(n))
        assert found.value == pytest.approx(best(cost), rel=1e-9, abs=1e-9 * scale)
        assert found.value == pytest.approx(cost[np.arange(n), found.columns].sum(), rel=1e-12, abs=1e-9)
        assert abs(found.gap) <= 1e-9 * scale * n


def test_single_precision_and_a_related_problem():
    generator = np.random.default_rng(0)
    cost = generator.normal(size=(60, 60))
    first = solve_assignment(cost)
    later = cost + 0.05 * generator.normal(size=cost.shape)
    warm = solve_assignment(later, potentials=first.potentials, columns=first.columns)
    assert warm.value == pytest.approx(best(later), rel=1e-12)
    single = solve_assignment(cost.astype(np.float32))
    assert single.value == pytest.approx(best(cost), rel=1e-5)


def test_the_gap_tells_what_is_not_optimal():
    """Control: potentials prove nothing of another assignment."""
    cost = np.random.default_rng(1).normal(size=(12, 12))
    found = solve_assignment(cost)
    dual = (cost - found.potentials).min(1).sum() + found.potentials.sum()
    assert found.value - dual == pytest.approx(0, abs=1e-9)
    other = found.columns.copy()
    other[[0, 1]] = other[[1, 0]]
    assert cost[np.arange(12), other].sum() - dual > 1e-3


def test_threads_do_not_disturb_each_other():
    costs = [np.random.default_rng(k).normal(size=(80, 80)) for k in range(4)]
    values = [0.0] * 4

    def run(k):
        values[k] = solve_assignment(costs[k]).value

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == pytest.approx([best(cost) for cost in costs])


def test_wrong_costs_are_refused_in_words():
    with pytest.raises(WorkbenchError, match=r"shape \(3, 4\).*square"):
        solve_assignment(np.zeros((3, 4)))
    for bad in (np.nan, np.inf):
        cost = np.zeros((3, 3))
        cost[1, 2] = bad
        with pytest.raises(WorkbenchError, match="1 of 9 costs"):
            solve_assignment(cost)
        with pytest.raises(WorkbenchError, match="finite"):
            auction(torch.from_numpy(cost))
    assert len(solve_assignment(np.zeros((0, 0))).columns) == 0


@pytest.mark.parametrize("n", [1, 2, 10, 60])
@pytest.mark.parametrize("kind", ["normal", "whole numbers", "equal"])
def test_the_auction_is_within_its_gap(n, kind):
    score = torch.from_numpy(KINDS[kind](np.random.default_rng(n), n))
    spread = float(score.max() - score.min()) or 1.0
    for gap in (1e-2, 1e-5):
        found = auction(score, gap=gap)
        assert found.complete
        assert sorted(found.columns.tolist()) == list(range(n))
        optimum = -best(-score.numpy())
        assert optimum - found.value <= gap * spread * n + 1e-9
        assert found.gap >= optimum - found.value - 1e-9  # the gap is a bound
        assert found.gap <= gap * spread * n + 1e-9


def test_an_auction_that_stops_early_says_so_and_its_prices_help():
    score = torch.randn(80, 80, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    short = auction(score, max_rounds=2)
    assert not short.complete
    assert short.rounds == 2
    assert np.isnan(short.gap)
    part = auction(score, enough=0.9)
    finished = solve_assignment(-score.numpy(), potentials=-part.prices.numpy(), columns=part.columns.numpy())
    assert -finished.value == pytest.approx(-best(-score.numpy()), rel=1e-12)
    for wrong in ({"gap": 0.0}, {"scaling": 1.0}, {"max_rounds": 0}, {"enough": 0.0}):
        with pytest.raises(WorkbenchError, match=next(iter(wrong))):
            auction(score, **wrong)


@pytest.mark.parametrize("solver", ["scipy", "jv", "auction", "auto"])
def test_every_solver_gives_weight_matching_the_same_gains(solver):
    a, symmetry = gaussian_mlp([40, 150, 150, 10], 0)
    b, _ = gaussian_mlp([40, 150, 150, 10], 9)
    found = align(symmetry, a, b, WeightMatching(solver=solver, order="given"))
    reference = align(symmetry, a, b, WeightMatching(solver="scipy", order="given"))
    assert found.element == reference.element
    ran = {"scipy": [], "jv": ["shortest augmenting paths"], "auto": ["shortest augmenting paths"], "auction": ["auction"]}[solver]
    assert all(any(word in note for note in found.notes) for word in ran)


def test_auto_leaves_small_problems_to_scipy_and_says_what_ran():
    assigner = Assigner()
    assign(torch.eye(5), torch.arange(5), assigner=assigner)
    assign(torch.eye(200), torch.arange(200), assigner=assigner)
    assert dict(assigner.solved) == {"scipy": 1, "jv": 1}
    assert assigner.words == "1 assignments by warm-started shortest augmenting paths, 1 assignments by SciPy"
    with pytest.raises(WorkbenchError, match="solver is 'lapjv'"):
        WeightMatching(solver="lapjv")


def test_without_numba_scipy_does_all_of_it(monkeypatch):
    monkeypatch.setattr(module.lap, "available", lambda: False)
    a, symmetry = gaussian_mlp([20, 140, 10], 0)
    planted = symmetry.sample(0)
    assert align(symmetry, a, symmetry.apply(planted, a), WeightMatching()).element == planted.inverse()
    with pytest.raises(WorkbenchError, match="needs numba"):
        align(symmetry, a, a, WeightMatching(solver="jv"))


def test_importing_the_package_does_not_import_numba():
    code = "import sys, workbench.matching; assert 'numba' not in sys.modules; print('fine')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "fine"


def test_updated_cost_matrices_are_those_computed_anew(monkeypatch):
    """After many small changes; the control forgets one of them."""
    a, symmetry = residual(0, blocks=2, width=24)
    b, _ = residual(5, blocks=2, width=24)
    problem = MatchingProblem(symmetry, a, b)
    costs, element = CostMatrices(problem), symmetry.identity()
    calls = []
    updated = CostMatrices._updated
    monkeypatch.setattr(CostMatrices, "_updated", lambda self, *given: calls.append(1) or updated(self, *given))
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        before = {name: costs.of(name, element) for name in symmetry.groups}
        name = list(symmetry.groups)[int(torch.randint(len(symmetry.groups), (1,), generator=generator))]
        units = element.permutations[name].clone()
        i, j = torch.randperm(len(units), generator=generator)[:2].tolist()
        units[[i, j]] = units[[j, i]]
        element = replace(element, permutations={**element.permutations, name: units})
        for other in symmetry.groups:
            anew = CostMatrices(problem).of(other, element)
            assert torch.allclose(costs.of(other, element), anew, rtol=1e-10, atol=1e-10)
        stale = [not torch.allclose(before[other], CostMatrices(problem).of(other, element)) for other in problem.neighbours[name]]
        assert any(stale)
    assert len(calls) > 50
