"""Signed matching against brute force over all 2^n · n! elements, and planted signed permutations."""

import itertools

import pytest
import torch
from torch import nn

from workbench.errors import WorkbenchError
from workbench.matching import MatchingProblem, WeightMatching, align, wreath
from workbench.matching.assignment import assign
from workbench.matching.problem import CostMatrices
from workbench.matching.signed import assign_signed, sign_patterns, solve
from workbench.symmetry import discover_symmetry

ONE = sign_patterns([(1,)])


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def start(n):
    return torch.arange(n), torch.zeros(n, dtype=torch.int64)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_one_sign_against_brute_force(n):
    unsigned = 0
    for seed in range(20):
        score = normal(seed, n, n)
        new, signs, gain = assign_signed(score[None], ONE, *start(n))
        worth = {
            (p, s): sum(s[i] * float(score[i, p[i]]) for i in range(n))
            for p in itertools.permutations(range(n))
            for s in itertools.product((1, -1), repeat=n)
        }
        best = max(worth, key=worth.__getitem__)
        assert (tuple(new.tolist()), tuple((1 - 2 * signs).tolist())) == best
        assert gain == pytest.approx(worth[best] - worth[tuple(range(n)), (1,) * n], abs=1e-12)
        unsigned += tuple(assign(score, torch.arange(n))[0].tolist()) == best[0]
    assert n < 3 or unsigned < 20, "if the plain assignment never differs, this compares nothing"


@pytest.mark.parametrize("n", [2, 3])
def test_several_signs_on_several_sets_against_brute_force(n):
    """Two signs on three sets of tensors: the first acts on set 1, the second on set 2, both on set 3, none on set 0."""
    exponents = [(0, 0), (1, 0), (0, 1), (1, 1)]
    patterns = sign_patterns(exponents)
    assert patterns.tolist()[0] == [1, 1, 1, 1]
    assert {tuple(row) for row in patterns.tolist()} == {(1, a, b, a * b) for a in (1, -1) for b in (1, -1)}
    for seed in range(10):
        scores = normal(seed, 4, n, n)
        new, chosen, gain = assign_signed(scores, patterns, *start(n))
        best = max(
            sum(float((patterns[k[i]] * scores[:, i, p[i]]).sum()) for i in range(n))
            for p in itertools.permutations(range(n))
            for k in itertools.product(range(4), repeat=n)
        )
        found = sum(float((patterns[chosen[i]] * scores[:, i, new[i]]).sum()) for i in range(n))
        assert found == pytest.approx(best, abs=1e-12)
        assert gain == pytest.approx(best - float(scores.sum(0).diagonal().sum()), abs=1e-12)


def test_ties_and_zeros_change_nothing():
    """An entry of 0 keeps its sign and its place. Control: one that gains by its sign changes it."""
    permutation, chosen = torch.tensor([1, 0, 2]), torch.tensor([0, 1, 1])
    score = torch.tensor([[0.0, 0, 0], [0, 0, 0], [0, 0, -2]], dtype=torch.float64)
    new, signs, gain = assign_signed(score[None], ONE, permutation, chosen)
    assert new is permutation
    assert signs is chosen
    assert gain == 0
    new, signs, gain = assign_signed(-score[None], ONE, permutation, chosen)
    assert (new.tolist(), signs.tolist(), gain) == ([1, 0, 2], [0, 1, 0], 4)


def test_bad_exponents_are_refused():
    with pytest.raises(WorkbenchError, match="not rows of zeros and ones"):
        sign_patterns([(0, 2)])


class Tanh(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 4))


class Stream(nn.Module):
    """A residual stream under an RMS norm: one sign for a channel in its readers and writers, another in the norm's gain."""

    def __init__(self):
        super().__init__()
        self.read, self.norm, self.out = nn.Linear(9, 12), nn.RMSNorm(12), nn.Linear(12, 4)
        self.up, self.down = nn.Linear(12, 16), nn.Linear(16, 12)

    def forward(self, x):
        h = self.read(x)
        return self.out(self.norm(h + self.down(torch.tanh(self.up(self.norm(h))))))


class Heads(nn.Module):
    """Attention of three heads: signs of values inside each head, and of queries with keys."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(9, 15), nn.Linear(9, 15), nn.Linear(9, 15), nn.Linear(15, 4))

    def forward(self, x):
        q, k, v = (part(x).view(*x.shape[:2], 3, 5).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = torch.softmax(q @ k.mT, -1) @ v
        return self.o(y.transpose(1, 2).flatten(2))


NETWORKS = {"tanh": (Tanh, (2, 9)), "stream": (Stream, (2, 9)), "heads": (Heads, (2, 7, 9))}


def random_state(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(t.shape, generator=generator, dtype=torch.float64) for n, t in model.state_dict().items()}


@pytest.mark.parametrize("name", NETWORKS)
def test_planted_permutations_and_signs_are_found(name):
    """The group without signs cannot reach the planted objective: the control."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = build().double()
    inputs = (torch.randn(shape, dtype=torch.float64),)
    signed, plain = discover_symmetry(model, inputs, signs=True), discover_symmetry(model, inputs)
    assert signed.sign_bits > 0
    for seed in range(5):
        anchor = random_state(model, seed)
        moving = signed.apply(signed.sample(seed), anchor)
        matcher = WeightMatching(start="anchored")
        found = align(signed, anchor, moving, matcher, seed=seed, model=model, inputs=inputs)
        best = sum(float(anchor[n].square().sum()) for n in anchor)
        assert found.objective == pytest.approx(best, rel=1e-9)
        assert found.distance_after < 1e-9 * found.distance_before
        assert found.preservation.passed
        assert found.converged
        assert any("were negated" in note for note in found.notes)
        objectives = [step.objective for step in found.history]
        assert objectives == sorted(objectives)
        assert align(plain, anchor, moving, matcher, seed=seed).objective < 0.8 * best


@pytest.mark.parametrize("name", NETWORKS)
def test_unrelated_networks_come_at_least_as_close_with_signs(name):
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = build().double()
    inputs = (torch.randn(shape, dtype=torch.float64),)
    signed, plain = discover_symmetry(model, inputs, signs=True), discover_symmetry(model, inputs)
    more = 0
    for seed in range(5):
        anchor, moving = random_state(model, 2 * seed), random_state(model, 2 * seed + 1)
        first = align(signed, anchor, moving, WeightMatching(restarts=2), seed=seed, model=model, inputs=inputs)
        assert first.preservation.passed
        problem = MatchingProblem(signed, anchor, moving)
        # what the visits said they gained is what was gained, and at the end no visit gains
        assert first.history[-1].objective == pytest.approx(first.objective, rel=1e-10)
        for factor in signed.groups:
            if not problem.dependents[factor] and factor not in problem.quadratic:
                assert solve(problem, CostMatrices(problem), factor, first.element)[1] < 1e-8 * abs(first.objective)
        assert first.objective == pytest.approx(problem.objective(first.element), rel=1e-12)
        floats = {n: first.aligned[n] for n in problem.names}
        assert first.objective == pytest.approx(sum(float((anchor[n] * w).sum()) for n, w in floats.items()), rel=1e-9)
        more += first.objective > align(plain, anchor, moving, WeightMatching(restarts=2), seed=seed).objective
    assert more >= 4


def test_heads_and_the_signs_inside_them_are_proposed_together():
    """One visit of the heads finds the planted order of values and outputs, and their signs; queries and keys likewise."""
    torch.manual_seed(0)
    model = Heads().double()
    symmetry = discover_symmetry(model, (torch.randn(2, 7, 9, dtype=torch.float64),), signs=True)
    (heads,) = (name for name, group in symmetry.groups.items() if not group.over)
    for seed in range(5):
        anchor = random_state(model, seed)
        problem = MatchingProblem(symmetry, anchor, symmetry.apply(symmetry.sample(seed), anchor))
        found = wreath.propose(problem, heads, symmetry.identity()).element
        assert problem.objective(found) == pytest.approx(sum(float(w.square().sum()) for w in anchor.values()), rel=1e-9)


def test_descent_never_beats_brute_force_and_meets_it_with_one_factor():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 2, bias=False)).double()
    symmetry = discover_symmetry(model, (torch.randn(2, 3, dtype=torch.float64),), signs=True)
    (factor,), (sign,) = symmetry.groups, symmetry.scalings
    for seed in range(6):
        anchor, moving = random_state(model, 2 * seed), random_state(model, 2 * seed + 1)
        problem = MatchingProblem(symmetry, anchor, moving)
        best = max(
            problem.objective(symmetry.element({factor: p}, {sign: s}))
            for p in itertools.permutations(range(3))
            for s in itertools.product((1.0, -1.0), repeat=3)
        )
        assert align(symmetry, anchor, moving).objective == pytest.approx(best, rel=1e-12)


def test_positive_scales_are_left_at_one():
    """They may be of any size, and a sum of products would grow with them without end."""
    model = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 4)).double()
    symmetry = discover_symmetry(model, (torch.randn(2, 9, dtype=torch.float64),), scales=True, signs=True)
    assert symmetry.scale_dimension == 40
    from_restart = 0
    for seed in range(3):
        anchor, moving = random_state(model, 2 * seed), random_state(model, 2 * seed + 1)
        alone, found = (align(symmetry, anchor, moving, WeightMatching(restarts=n), seed=seed) for n in (0, 5))
        assert all(bool((values == 1).all()) for values in found.element.scales.values())
        from_restart += found.objective > alone.objective
    assert from_restart > 0
