"""Signed matching against brute force over all 2^n · n! elements, and planted signed permutations."""

import itertools

import pytest
import torch

from workbench.errors import WorkbenchError
from workbench.matching.assignment import assign
from workbench.matching.signed import ONE_SIGN, SignedChoice, assign_signed, descend_signed, sign_patterns

ONE = torch.tensor(ONE_SIGN)


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


class TanhNetwork:
    """An odd network W_L tanh(… tanh(W_0 x)) as the descent sees it: a sign on every axis of every hidden factor."""

    def __init__(self, a, b):
        self.a, self.b = a, b
        self.factors = [f"h{i}" for i in range(len(a) - 1)]
        self.sign_patterns = dict.fromkeys(self.factors, ONE)

    def moved(self, choice, i, *, out=True, into=True):
        w = self.b[i]
        if out and i < len(self.factors):
            w = (1 - 2 * choice.patterns[f"h{i}"])[:, None] * w[choice.permutations[f"h{i}"]]
        if into and i:
            w = (1 - 2 * choice.patterns[f"h{i - 1}"]) * w[:, choice.permutations[f"h{i - 1}"]]
        return w

    def scores(self, factor, choice):
        i = int(factor[1:])
        rows = self.a[i] @ self.moved(choice, i, out=False).T
        return (rows + self.a[i + 1].T @ self.moved(choice, i + 1, into=False))[None]

    def objective(self, choice):
        return sum(float((a * self.moved(choice, i)).sum()) for i, a in enumerate(self.a))

    def identity(self):
        shapes = {name: self.a[i].shape[0] for i, name in enumerate(self.factors)}
        return SignedChoice({n: torch.arange(k) for n, k in shapes.items()}, {n: torch.zeros(k).long() for n, k in shapes.items()})


def widths(*sizes):
    return list(itertools.pairwise(sizes))


def test_planted_signed_permutations_are_found():
    """The plain assignment (patterns of one row) cannot reach the planted objective: the control."""
    for seed in range(5):
        a = [normal(10 * seed + i, n, m) for i, (m, n) in enumerate(widths(9, 20, 20, 20, 4))]
        planted = TanhNetwork(a, a)
        generator = torch.Generator().manual_seed(seed)
        choice = SignedChoice(
            {n: torch.randperm(20, generator=generator) for n in planted.factors},
            {n: torch.randint(0, 2, (20,), generator=generator) for n in planted.factors},
        )
        b = [planted.moved(choice, i) for i in range(len(a))]
        x = normal(seed, 9, 6)

        def run(weights, x=x):
            for w in weights[:-1]:
                x = torch.tanh(w @ x)
            return weights[-1] @ x

        assert (run(a) - run(b)).abs().max() < 1e-12
        problem = TanhNetwork(a, b)
        best = sum(float(w.square().sum()) for w in a)
        found = descend_signed(problem, problem.identity(), generator=generator)
        assert found.converged
        assert found.objectives[-1] == pytest.approx(best, rel=1e-9)
        assert list(found.objectives) == sorted(found.objectives)
        assert all((problem.moved(found.choice, i) - a[i]).abs().max() == 0 for i in range(len(a)))
        problem.sign_patterns = dict.fromkeys(problem.factors, ONE[:1])
        assert descend_signed(problem, problem.identity(), generator=generator).objectives[-1] < 0.8 * best


def test_descent_never_beats_brute_force_and_sometimes_meets_it():
    met = 0
    for seed in range(6):
        a, b = ([normal(20 * seed + 7 * k + i, n, m) for i, (m, n) in enumerate(widths(3, 3, 2))] for k in (0, 1))
        problem = TanhNetwork(a, b)
        best = max(
            problem.objective(SignedChoice({"h0": torch.tensor(p)}, {"h0": torch.tensor(s)}))
            for p in itertools.permutations(range(3))
            for s in itertools.product((0, 1), repeat=3)
        )
        found = descend_signed(problem, problem.identity(), generator=torch.Generator().manual_seed(0)).objectives[-1]
        assert found <= best + 1e-12
        met += found == pytest.approx(best)
    assert met == 6, "with one factor the descent is one exact assignment"
