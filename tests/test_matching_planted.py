"""Evidence: a planted element of a factored group is found, its objective to 1e-9; what lies outside the group is not."""

import pytest
import torch
from benchmarks.factored_models import Decoder, Encoder, Experts, gaussian_state

from workbench.errors import WorkbenchError
from workbench.matching import MATCHERS, MatchingProblem, WeightMatching, align, matcher_needs
from workbench.symmetry import PermutationSpec, discover_symmetry

MODELS = {
    "multi-head": Encoder,
    "grouped-query, rotary": Decoder,
    "experts, softmax gates": Experts,
    "experts, one-hot gates": lambda: Experts(gates="one-hot"),
}


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    model = MODELS[request.param]()
    symmetry = discover_symmetry(model, model.example())
    assert any(group.over for group in symmetry.groups.values())
    return model, symmetry


def noisy(state, sigma, seed):
    generator = torch.Generator().manual_seed(seed)
    return {n: t + sigma * t.std() * torch.randn(t.shape, generator=generator, dtype=t.dtype) for n, t in state.items()}


@pytest.mark.parametrize("start", ["identity", "anchored"])
def test_the_planted_objective_is_reached(case, start):
    model, symmetry = case
    inputs = tuple(x.double() if x.is_floating_point() else x for x in model.example())
    for seed in range(4):
        a = gaussian_state(model, seed)
        planted = symmetry.sample(1000 + seed)
        b = symmetry.apply(planted, a)
        best = sum(float(t.square().sum()) for t in a.values())
        found = align(symmetry, a, b, WeightMatching(start=start), seed=seed, model=model, inputs=inputs)
        assert found.objective == pytest.approx(best, rel=1e-9)
        assert found.element == planted.inverse()
        assert found.distance_after == 0 < found.distance_before
        assert found.preservation.passed
        for control in ("identity", "random"):
            assert align(symmetry, a, b, control, seed=seed).objective < 0.5 * best


def test_with_noise_the_planted_element_or_a_better_one_is_found(case):
    model, symmetry = case
    exact = 0
    for seed in range(4):
        a = gaussian_state(model, seed)
        planted = symmetry.sample(1000 + seed)
        b = noisy(symmetry.apply(planted, a), 0.4, seed)
        found = align(symmetry, a, b, WeightMatching(restarts=2), seed=seed)
        target = MatchingProblem(symmetry, a, b).objective(planted.inverse())
        assert found.objective >= target - 1e-9 * abs(target)
        exact += found.element == planted.inverse()
    assert exact >= 3


def exchanged(model, state):
    """Not in the group: query heads (and their columns of o) move to the next key/value group, or, with a key/value head each,
    queries without their values; experts without their router rows."""
    out = {name: tensor.clone() for name, tensor in state.items()}
    if isinstance(model, Experts):
        return out | {name: state[name].roll(1, 0) for name in ("up", "up_bias", "down")}
    attention = model.attention[0]
    shared = attention.heads > attention.kv_heads
    for name, axis in (("q.weight", 0), ("q.bias", 0), ("o.weight", 1)):
        name = f"attention.0.{name}"
        if name in out and (shared or axis == 0):
            split = state[name].unflatten(axis, (attention.heads, -1))
            out[name] = split.roll(attention.heads // attention.kv_heads, axis).flatten(axis, axis + 1)
    return out


def test_an_element_outside_the_group_is_not_reached(case):
    model, symmetry = case
    a = gaussian_state(model, 0)
    b = symmetry.apply(symmetry.sample(7), exchanged(model, a))
    best = sum(float(t.square().sum()) for t in a.values())
    found = align(symmetry, a, b, WeightMatching(restarts=8))
    assert found.objective < (1 - 1e-3) * best
    assert found.distance_after > 0.1


def test_every_matcher_keeps_the_function(case):
    model, symmetry = case
    inputs = tuple(x.double() if x.is_floating_point() else x for x in model.example())
    a, b = gaussian_state(model, 0), gaussian_state(model, 1)
    for name in (name for name in MATCHERS if matcher_needs(name) != "labels"):
        found = align(symmetry, a, b, name, model=model, inputs=inputs)
        assert found.preservation.passed
        assert found.preservation.max_abs_change < 1e-10 * found.preservation.scale


def test_a_plain_specification_is_refused_in_words(case):
    """Stacked experts have one factor per axis, and still one permutation is not enough. Control: plain models convert."""
    _, symmetry = case
    with pytest.raises(WorkbenchError, match=r"has a permutation of its own for each of the \d values of .*Symmetry\.save"):
        symmetry.to_permutation_spec()
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    plain = discover_symmetry(model, (torch.randn(2, 3),)).to_permutation_spec()
    assert isinstance(plain, PermutationSpec)
    assert plain.axes_to_perm["2.weight"] == (None, "0")
    flat = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    with pytest.raises(WorkbenchError, match=r"Axis 1 of '3\.weight' is a product of factors \(0 × 4\), which axes_to_perm"):
        discover_symmetry(flat, (torch.randn(2, 1, 4, 4),)).to_permutation_spec()
