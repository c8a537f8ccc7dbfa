"""Matching beyond plain axes: flattened convolutions, concatenations, groups within groups, one factor twice in a tensor."""

import itertools

import pytest
import torch
from torch import nn

from workbench.matching import MatchingProblem, WeightMatching, align
from workbench.symmetry import PermutationSpec, discover_symmetry


class Flattened(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.head = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 12, 3), nn.Linear(12 * 16, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv2(torch.relu(self.conv1(x)))).flatten(1))


class Concatenated(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(8, 10), nn.Linear(8, 14), nn.Linear(24, 3)

    def forward(self, x):
        return self.head(torch.cat([torch.relu(self.one(x)), torch.relu(self.two(x))], 1))


class Normalised(nn.Module):
    """GroupNorm with several groups: whole groups move, and channels inside each."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16)
        self.conv2, self.norm2 = nn.Conv2d(16, 24, 3), nn.GroupNorm(3, 24)
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x)))
        return self.head(torch.relu(self.norm2(self.conv2(x))).mean((2, 3)))


class Grouped(nn.Module):
    """A grouped convolution: both sides of one group are dependent factors of the same block."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.head = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 24, 3, groups=4), nn.Linear(24, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv2(torch.relu(self.conv1(x)))).mean((2, 3)))


class Recurrent(nn.Module):
    """The hidden permutation lies on both axes of one square matrix: the objective is quadratic in it."""

    def __init__(self):
        super().__init__()
        self.into, self.hidden, self.head = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x):
        h = torch.tanh(self.into(x))
        for _ in range(2):
            h = torch.tanh(self.into(x) + self.hidden(h))
        return self.head(h)


IMAGE, VECTOR = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.randn(2, 8)
CASES = {
    "flatten": (Flattened, IMAGE),
    "concat": (Concatenated, VECTOR),
    "group norm": (Normalised, IMAGE),
    "grouped": (Grouped, IMAGE),
    "twice": (Recurrent, VECTOR),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    build, inputs = CASES[request.param]
    model = build()
    symmetry = discover_symmetry(model, (inputs,))
    generator = torch.Generator().manual_seed(1)

    def draw():
        return {name: torch.randn(t.shape, generator=generator) for name, t in model.state_dict().items()}

    return model, inputs, symmetry, draw


def test_planted_element_is_found(case):
    model, inputs, symmetry, draw = case
    assert symmetry.log10_order() > 5
    a = draw()
    for seed in range(3):
        planted = symmetry.sample(seed)
        found = align(symmetry, a, symmetry.apply(planted, a), model=model, inputs=inputs)
        assert found.distance_after == 0
        assert found.element == planted.inverse()
        assert found.preservation.passed


def test_true_objective_rises_and_function_is_kept(case):
    model, inputs, symmetry, draw = case
    a, b = draw(), draw()
    found = align(symmetry, a, b, model=model, inputs=inputs)
    objectives = [step.objective for step in found.history]
    assert all(later >= earlier for earlier, later in itertools.pairwise(objectives))
    assert objectives[-1] > objectives[0]
    assert objectives[-1] == pytest.approx(MatchingProblem(symmetry, a, b).objective(found.element), rel=1e-10)
    assert found.distance_after < found.distance_before
    assert found.preservation.passed


@pytest.mark.parametrize("case", ["flatten", "concat"], indirect=True)
def test_converged_means_no_swap_of_two_units_helps(case):
    """A local optimum of single-factor moves is one for transpositions of plain factors. Control: the start is not."""
    _, _, symmetry, draw = case
    a, b = draw(), draw()
    problem = MatchingProblem(symmetry, a, b)
    names = [n for n, g in symmetry.groups.items() if not g.over and n not in problem.quadratic and not problem.dependents[n]]
    assert names

    def best_swap(element):
        worth = problem.objective(element)
        gains = []
        for name in names:
            for i, j in itertools.combinations(range(symmetry.groups[name].size), 2):
                perm = element.permutations[name].clone()
                perm[[i, j]] = perm[[j, i]]
                gains.append(problem.objective(symmetry.element({**element.permutations, name: perm})) - worth)
        return max(gains)

    assert best_swap(align(symmetry, a, b).element) <= 1e-9
    assert best_swap(symmetry.identity()) > 1e-3


def test_every_tensor_is_moved_fixed_on_purpose_or_constant_and_an_unknown_one_stops_the_run():
    """A bottleneck block with a projection shortcut: nothing is left out silently, the third convolution included."""
    state = {}
    axes = {}
    for name, out, into in (("conv1", "a", "s"), ("conv2", "b", "a"), ("conv3", "t", "b"), ("short", "t", "s")):
        state[f"{name}.weight"], axes[f"{name}.weight"] = torch.randn(6, 6, 1, 1), (out, into, None, None)
        state[f"bn_{name}.weight"], axes[f"bn_{name}.weight"] = torch.rand(6), (out,)
    symmetry = PermutationSpec(axes).to_symmetry(state)
    assert {entry.role for entry in symmetry.tensors.values()} == {"moved"}
    with pytest.raises(Exception, match=r"unknown: conv4\.weight"):
        align(symmetry, {**state, "conv4.weight": torch.zeros(6, 6, 1, 1)}, {**state, "conv4.weight": torch.zeros(6, 6, 1, 1)})
    with pytest.raises(Exception, match=r"does not name the tensor 'bn_conv3\.weight'"):
        PermutationSpec({k: v for k, v in axes.items() if k != "bn_conv3.weight"}).to_symmetry(state)


def test_anchored_start_also_works_with_dependent_factors():
    model = Normalised()
    symmetry = discover_symmetry(model, (IMAGE,))
    a = {name: torch.randn(t.shape) for name, t in model.state_dict().items()}
    planted = symmetry.sample(4)
    assert align(symmetry, a, symmetry.apply(planted, a), WeightMatching(start="anchored")).distance_after == 0
