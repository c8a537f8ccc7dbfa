"""The straight-through estimator and the loss it looks at, on digits: its own figure is the barrier that others measure."""

import pytest
import torch
from torch import nn

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.errors import WorkbenchError
from workbench.matching import MatchingData, MatchingProblem, SinkhornMatching, StraightThrough, WeightMatching, align
from workbench.matching.task_loss import TaskLoss, midpoint
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.spectra import singular_alignment
from workbench.symmetry import discover_symmetry
from workbench.tasks import Task, task
from workbench.training import train


@pytest.fixture(scope="module")
def digits():
    data = task("digits")
    net = architecture("mlp", inputs=64, outputs=10, width=32, depth=2)
    states = [one.state for one in train(net, data, seeds=range(4), epochs=60, batch_size=50, optimizer="adam", lr=1e-3)]
    model = net.build(seed=0)
    return model, data, discover_symmetry(model, data.example_inputs), states


def at_the_midpoint(model, data, first, second):
    profile = profile_path(LinearPath(first, second), model, data, points=3, splits=("train",))
    return float(barrier(profile, "loss", "midpoint")[0])


def test_its_figure_is_the_barrier_and_lower_than_weight_matching(digits):
    model, data, symmetry, states = digits
    lower = 0
    for a, b in ((states[0], states[1]), (states[2], states[3])):
        found = align(symmetry, a, b, StraightThrough(epochs=10), model=model, task=data)
        told = found.criterion["midpoint loss above the mean of the ends"]
        assert told == pytest.approx(at_the_midpoint(model, data, a, found.aligned), rel=1e-4, abs=1e-6)
        assert "1400 examples of digits/train" in found.data_used
        plain = at_the_midpoint(model, data, a, align(symmetry, a, b, WeightMatching(order="given", max_sweeps=3)).aligned)
        assert told <= plain + 1e-6  # plain weight matching is its first candidate
        lower += told < 0.9 * plain
    assert lower >= 1


def test_a_low_barrier_says_nothing_about_singular_vectors(digits):
    """Long steps: the barrier stays below that of weight matching while R falls towards its null."""
    model, data, symmetry, states = digits
    a, b = states[0], states[1]
    near = align(symmetry, a, b)
    far = align(symmetry, a, b, StraightThrough(epochs=20, lr=1.0), model=model, task=data)

    def singular(found):
        spectra = singular_alignment(a, b, aligned=found.aligned, symmetry=symmetry, gamma=(0.3,), top=())
        return float(spectra["R_total"].sel(stage="after", gamma=0.3)), float(spectra["null_R_total"].sel(stage="after", gamma=0.3))

    (r_near, null), (r_far, _) = singular(near), singular(far)
    assert at_the_midpoint(model, data, a, far.aligned) < at_the_midpoint(model, data, a, near.aligned)
    assert r_far < r_near
    assert null < r_near


@pytest.mark.parametrize("cost", ["midpoint", "random"])
def test_sinkhorn_by_loss_lowers_the_barrier(digits, cost):
    model, data, symmetry, states = digits
    found = align(symmetry, *states[:2], SinkhornMatching(cost=cost, steps=60, patience=60), model=model, task=data)
    told = found.criterion["midpoint loss above the mean of the ends"]
    assert told == pytest.approx(at_the_midpoint(model, data, states[0], found.aligned), rel=1e-4, abs=1e-6)
    assert told < 0.5 * at_the_midpoint(model, data, *states[:2])


def test_the_gradient_is_that_of_the_midpoint(digits):
    """The loss is differentiable in the weights: against finite differences, in float64."""
    model, data, _, states = digits
    a, b = ({n: t.double() for n, t in state.items()} for state in states[:2])
    loss = TaskLoss(MatchingData.of_task(model, data), torch.device("cpu"), judged=50, seed=0)
    loss.model.double()
    middle, rows = midpoint(a, b), torch.arange(20)
    leaf = middle["layers.1.bias"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss({**middle, "layers.1.bias": leaf}, rows), leaf)
    for index in range(0, 32, 5):
        values = []
        for sign in (1, -1):
            moved = middle["layers.1.bias"].clone()
            moved[index] += sign * 1e-5
            values.append(float(loss({**middle, "layers.1.bias": moved}, rows)))
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(float(gradient[index]), abs=1e-8)


def test_batchnorm_normalises_by_the_batch_and_is_said():
    """The mixture's running statistics say nothing; nothing of the caller's model is written."""
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=generator)
    data = Task("made up", splits={"train": (x, torch.arange(60) % 3)})
    symmetry = discover_symmetry(model, (x,))
    states = []
    for seed in range(2):
        torch.manual_seed(seed)
        states.append({n: t + 0.3 * torch.rand(t.shape) if t.is_floating_point() else t for n, t in model.state_dict().items()})
    kept = {n: t.clone() for n, t in model.state_dict().items()}
    found = align(symmetry, *states, StraightThrough(epochs=3, batch_size=20), model=model, task=data)
    assert "BatchNorm normalised by the batch" in found.notes
    assert all(torch.equal(t, kept[n]) for n, t in model.state_dict().items())
    stale = {**states[0], "1.running_var": states[0]["1.running_var"] * 100}
    loss = TaskLoss(MatchingData.of_task(model, data), torch.device("cpu"), judged=60, seed=0)
    assert loss.judged(loss.placed(stale)) == loss.judged(loss.placed(states[0]))


def test_a_moved_anchor_is_a_new_problem_with_the_same_moving_blocks(digits):
    _, _, symmetry, states = digits
    a, b, c = states[:3]
    element = symmetry.sample(0)
    there = MatchingProblem(symmetry, a, b).with_anchor(c)
    assert there.objective(element) == pytest.approx(MatchingProblem(symmetry, c, b).objective(element), rel=1e-12)
    assert there.objective(element) != pytest.approx(MatchingProblem(symmetry, a, b).objective(element), rel=1e-6)


def test_wrong_use_is_refused_in_words(digits):
    model, data, symmetry, states = digits
    with pytest.raises(WorkbenchError, match=r"without data.*need no data"):
        align(symmetry, *states[:2], "straight-through")
    with pytest.raises(WorkbenchError, match=r"without a task"):
        align(symmetry, *states[:2], "straight-through", model=model, inputs=data.split("train")[0])
    with pytest.raises(WorkbenchError, match=r"task was given without model"):
        align(symmetry, *states[:2], "straight-through", task=data)
    for wrong in ({"epochs": 0}, {"lr": 0.0}, {"momentum": 1.0}, {"judged": 0}):
        with pytest.raises(WorkbenchError, match=next(iter(wrong))):
            StraightThrough(**wrong)
