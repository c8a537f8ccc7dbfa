"""Many models: common coordinates, exact cycles, copies merged back; pairs matched by themselves as the control."""

import itertools

import numpy as np
import pytest
import torch
from benchmarks.factored_models import Decoder, Encoder, Experts, gaussian_state
from test_matching import gaussian_mlp

from workbench.architectures import architecture
from workbench.errors import Cancelled, WorkbenchError
from workbench.evaluation import evaluate
from workbench.matching import (
    MANY_MATCHERS,
    AllToOne,
    MatchingProblem,
    MergeMany,
    UniverseFrankWolfe,
    align,
    align_many,
    cycle_error,
)
from workbench.matching.many import ManyProblem
from workbench.states import fingerprint
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train

METHODS = [*MANY_MATCHERS, "weights"]


def mlps(count, widths=(16, 20, 20, 5)):
    symmetry = gaussian_mlp(widths, 0)[1]
    return symmetry, [gaussian_mlp(widths, seed)[0] for seed in range(count)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("build", [Encoder, Decoder, Experts])
def test_permuted_copies_merge_back_to_the_model(build, method):
    model = build()
    symmetry = discover_symmetry(model, model.example())
    a = gaussian_state(model, 0)
    states = [a, *(symmetry.apply(symmetry.sample(seed), a) for seed in range(1, 5))]
    found = align_many(symmetry, states, method)
    assert max(float((found.merged[n] - a[n]).abs().max()) for n in a) < 1e-5
    assert found.distances_after.max() == 0 < found.distances_before[0, 1]
    # Control: the mean of the copies as they are is another model.
    naive = align_many(symmetry, states, AllToOne("identity"))
    assert max(float((naive.merged[n] - a[n]).abs().max()) for n in a) > 0.1


def test_cycles_are_exact_where_pairs_by_themselves_are_not():
    symmetry, states = mlps(4)
    found = align_many(symmetry, states)
    for p, q, r in itertools.permutations(range(4), 3):
        assert (found.pair(p, q) @ found.pair(q, r) @ found.pair(r, p)).is_identity
    assert found.cycle_error == 0
    alone = {(p, q): align(symmetry, states[p], states[q]).element for p, q in itertools.permutations(range(4), 2)}
    assert cycle_error(alone) > 0.3


def test_the_objective_is_the_norm_of_the_sum():
    symmetry, states = mlps(3)
    found = align_many(symmetry, states)
    names = MatchingProblem(symmetry, states[0], states[0]).names
    sums = sum(float(sum(state[n].double() for state in found.aligned).square().sum()) for n in names)
    own = sum(float(state[n].double().square().sum()) for state in states for n in names)
    assert found.objective == pytest.approx((sums - own) / 2, rel=1e-9)
    pairs = sum(
        float((found.aligned[p][n].double() * found.aligned[q][n].double()).sum())
        for p, q in itertools.combinations(range(3), 2)
        for n in names
    )
    assert found.objective == pytest.approx(pairs, rel=1e-9)


def test_no_order_no_seed_for_frank_wolfe():
    symmetry, states = mlps(5)
    runs = {align_many(symmetry, states, "frank-wolfe", seed=seed).elements for seed in range(4)}
    assert len(runs) == 1
    # Control: MERGE-MANY depends on the order that the seed draws.
    assert len({align_many(symmetry, states, "merge-many", seed=seed).elements for seed in range(4)}) > 1


def test_merge_many_rises_and_ends():
    symmetry, states = mlps(4)
    found = align_many(symmetry, states, MergeMany())
    objectives = [step.objective for step in found.history]
    assert all(later > earlier for earlier, later in itertools.pairwise(objectives))
    assert objectives[-1] == pytest.approx(found.objective, rel=1e-9)
    assert found.converged
    short = align_many(symmetry, states, MergeMany(max_rounds=1))
    assert short.sweeps == 1 < found.sweeps
    assert short.objective <= found.objective


def test_the_soft_objective_and_its_gradient():
    """Frank–Wolfe's scores against finite differences."""
    from workbench.matching.universe import _Climb
    from workbench.progress import Reporter

    symmetry, states = mlps(3, (5, 4, 4, 3))
    first = MatchingProblem(symmetry, states[0], states[0])
    climb = _Climb(ManyProblem(first, states), UniverseFrankWolfe(), Reporter(None, ""))
    point = [r.of(symmetry.sample(n)) if n == 0 else r.barycentre() for n, r in enumerate(climb.relaxations)]
    leaf = point[1]["P0"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(climb.objective([point[0], {**point[1], "P0": leaf}, point[2]]), leaf)
    for index in range(leaf.numel()):
        values = []
        for sign in (1, -1):
            moved = point[1]["P0"].clone()
            moved.view(-1)[index] += sign * 1e-5
            values.append(float(climb.objective([point[0], {**point[1], "P0": moved}, point[2]])))
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(float(gradient.view(-1)[index]), abs=1e-7)


def test_frank_wolfe_is_above_merge_many_on_the_whole():
    better = 0
    for offset in range(4):
        symmetry = gaussian_mlp((16, 20, 20, 5), 0)[1]
        states = [gaussian_mlp((16, 20, 20, 5), 10 * offset + seed)[0] for seed in range(4)]
        merged = np.mean([align_many(symmetry, states, "merge-many", seed=seed).objective for seed in range(3)])
        better += align_many(symmetry, states, "frank-wolfe").objective > merged
    assert better >= 3


def test_five_digits_networks_merged():
    """Cycle-consistent matching leaves a far better mean than no matching."""
    data = task("digits")
    net = architecture("mlp", inputs=64, outputs=10, width=128, depth=2)
    states = [one.state for one in train(net, data, seeds=range(5), epochs=30, batch_size=50, optimizer="adam", lr=1e-3)]
    model = net.build(seed=0)
    symmetry = discover_symmetry(model, data.example_inputs)
    found = align_many(symmetry, states, model=model, task=data)
    assert all(one.passed for one in found.preservations)
    merged = evaluate(model, found.merged, data)
    naive = evaluate(model, align_many(symmetry, states, AllToOne("identity")).merged, data)
    assert merged["test", "accuracy"] > 0.93
    assert naive["test", "accuracy"] < 0.8


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_cancelling_keeps_the_best_so_far(method, steps):
    symmetry, states = mlps(4)
    before = [fingerprint(state) for state in states]
    seen = []

    def stop(step):
        seen.append(step)
        if len(seen) >= steps:
            raise Cancelled

    found = align_many(symmetry, states, method, progress=stop)
    assert found.cancelled
    assert "cancelled" in found.notes[-1]
    assert len(found.elements) == 4
    assert found.elements[0].is_identity
    assert [fingerprint(state) for state in states] == before


def test_wrong_use_is_refused_in_words():
    symmetry, states = mlps(3)
    with pytest.raises(WorkbenchError, match="two or more"):
        align_many(symmetry, states[:1])
    with pytest.raises(WorkbenchError, match="merge-many"):
        align_many(symmetry, states, "merge-mny")
    with pytest.raises(WorkbenchError, match="instead of an instance"):
        align_many(symmetry, states, MergeMany)
    with pytest.raises(WorkbenchError, match="number from 0 to 2"):
        align_many(symmetry, states, AllToOne(reference=3))
    broken = {**states[2], "0.bias": states[2]["0.bias"] * float("nan")}
    with pytest.raises(WorkbenchError, match=r"third model has non-finite values \(0\.bias"):
        align_many(symmetry, [*states[:2], broken])
    with pytest.raises(WorkbenchError, match="do not hold the same tensors"):
        align_many(symmetry, [*states[:2], {"0.weight": states[0]["0.weight"]}])
    with pytest.raises(WorkbenchError, match="without"):
        align_many(symmetry, states, "straight-through")
    assert set(align_many(symmetry, states).summary()) >= {"models", "cycle_error", "mean_distance_after", "data_used"}
