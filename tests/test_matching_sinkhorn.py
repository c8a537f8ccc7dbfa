"""The Sinkhorn operator against finite differences, and the matcher on planted elements and on digits."""

import pytest
import torch
from benchmarks.factored_models import Decoder, Experts, gaussian_state
from test_matching import residual

from workbench.errors import WorkbenchError
from workbench.matching import MatchingProblem, SinkhornMatching, align
from workbench.matching.sinkhorn_operator import sinkhorn
from workbench.symmetry import discover_symmetry


def largest_gradient_error(n, temperature, iterations):
    """Against central differences of the converged operator."""
    generator = torch.Generator().manual_seed(n)
    scores = torch.randn(2, n, n, generator=generator, dtype=torch.float64)
    weights = torch.randn(2, n, n, generator=generator, dtype=torch.float64)
    leaf = scores.clone().requires_grad_()
    soft = sinkhorn(leaf, temperature=temperature, iterations=iterations, tolerance=1e-14)
    (gradient,) = torch.autograd.grad((soft * weights).sum(), leaf)
    worst, h = 0.0, 1e-5
    for index in range(scores.numel()):
        values = []
        for sign in (1, -1):
            moved = scores.clone()
            moved.view(-1)[index] += sign * h
            values.append(float((sinkhorn(moved, temperature=temperature, iterations=5000, tolerance=1e-14) * weights).sum()))
        worst = max(worst, abs((values[0] - values[1]) / (2 * h) - float(gradient.view(-1)[index])))
    return worst


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_the_implicit_gradient(n, temperature):
    assert largest_gradient_error(n, temperature, 5000) <= 1e-8


def test_the_implicit_gradient_of_what_has_not_converged_is_another():
    """Control: the formula is that of the limit."""
    assert largest_gradient_error(6, 0.3, 1) > 1e-4


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_rows_and_columns_sum_to_one(temperature):
    scores = torch.randn(3, 20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    soft = sinkhorn(scores, temperature=temperature, iterations=20_000, tolerance=1e-12)
    assert (soft >= 0).all()
    assert float((soft.sum(-1) - 1).abs().max()) < 1e-7
    assert float((soft.sum(-2) - 1).abs().max()) < 1e-7
    few = sinkhorn(scores, temperature=0.1, iterations=2)
    assert float((few.sum(-1) - 1).abs().max()) > 1e-3  # control


def test_low_temperature_gives_the_best_assignment():
    scores = torch.eye(6, dtype=torch.float64)[torch.randperm(6, generator=torch.Generator().manual_seed(1))]
    assert torch.allclose(sinkhorn(scores, temperature=0.01), scores, atol=1e-6)


@pytest.mark.parametrize(("build", "signs"), [(Decoder, False), (Experts, False), (Experts, True)])
def test_planted_elements_of_factored_groups(build, signs):
    model = build()
    symmetry = discover_symmetry(model, model.example(), signs=signs)
    a = gaussian_state(model, 0)
    b = symmetry.apply(MatchingProblem(symmetry, a, a).searched(symmetry.sample(3)), a)
    found = align(symmetry, a, b, SinkhornMatching(polish=False))
    best = sum(float(t.square().sum()) for t in a.values())
    assert found.objective == pytest.approx(best, rel=1e-9)
    # Control: without steps enough the start is what is left.
    assert align(symmetry, a, b, SinkhornMatching(polish=False, steps=1)).objective < 0.9 * best


def test_a_planted_element_of_a_residual_net():
    a, symmetry = residual(0, blocks=3, width=24)
    b = symmetry.apply(symmetry.sample(5), a)
    found = align(symmetry, a, b, SinkhornMatching(polish=False))
    assert found.distance_after == 0
    assert found.converged


def test_wrong_fields_are_refused_in_words():
    for wrong in ({"cost": "l2"}, {"steps": 0}, {"temperature": 0.0}, {"lr": -1.0}, {"patience": 0}):
        with pytest.raises(WorkbenchError, match=f"{next(iter(wrong))}"):
            SinkhornMatching(**wrong)
    assert SinkhornMatching().needs == "nothing"
    assert SinkhornMatching(cost="midpoint").needs == "labels"
