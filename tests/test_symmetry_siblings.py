"""Stretches of one axis that are apart and yet one factor: channels padded on both sides of a stream."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from workbench.matching import align
from workbench.symmetry import Symmetry, discover_symmetry
from workbench.symmetry.siblings import merge_siblings, sibling_factors

NARROW, PADDED = 4, 3
WIDE = NARROW + 2 * PADDED


def orders(*sizes) -> float:
    return sum(math.lgamma(n + 1) for n in sizes) / math.log(10)


class PaddedShortcut(nn.Module):
    """A residual block that widens its stream: the shortcut is padded with constants before and after the old channels."""

    def __init__(self, before: float = 0.0, after: float = 0.0) -> None:
        super().__init__()
        self.fill = before, after
        self.stem = nn.Conv2d(3, NARROW, 3, padding=1)
        self.wide = nn.Conv2d(NARROW, WIDE, 3, padding=1)
        self.norm = nn.BatchNorm2d(WIDE)
        self.head = nn.Linear(WIDE * 4, 5)

    def forward(self, x):
        x = self.stem(x).relu()
        before, after = (torch.full((len(x), PADDED, *x.shape[2:]), value) for value in self.fill)
        y = (self.norm(self.wide(x)) + torch.cat([before, x, after], 1)).relu()
        return self.head(nn.functional.adaptive_avg_pool2d(y, 2).flatten(1))


INPUTS = (torch.randn(2, 3, 6, 6),)


def test_two_padded_stretches_are_one_factor(tmp_path):
    torch.manual_seed(0)
    net = PaddedShortcut()
    found = discover_symmetry(net, INPUTS)
    assert found.log10_order() == pytest.approx(orders(NARROW, 2 * PADDED))
    assert found.proof.passed
    assert not found.notes
    state = net.double().eval().state_dict()
    g, h = found.sample(1), found.sample(2)
    moved = found.apply(g, state)
    x = INPUTS[0].double()
    torch.testing.assert_close(torch.func.functional_call(net, moved, x), net(x), rtol=1e-12, atol=1e-12)
    back, one, two = found.apply(g.inverse(), moved), found.apply(g @ h, state), found.apply(g, found.apply(h, state))
    assert all(torch.equal(back[name], state[name]) and torch.equal(one[name], two[name]) for name in state)
    loaded = Symmetry.load(found.save(tmp_path / "symmetry.json"))
    again = loaded.apply(loaded.sample(1), state)
    assert all(torch.equal(again[name], moved[name]) for name in state)
    # some unit really left its stretch
    big = next(perm for name, perm in g.permutations.items() if found.groups[name].size == 2 * PADDED)
    assert (big[:PADDED] >= PADDED).any()


def test_matching_finds_what_was_planted_across_the_stretches():
    torch.manual_seed(0)
    state = PaddedShortcut().state_dict()
    found = discover_symmetry(PaddedShortcut(), INPUTS)
    planted = found.sample(5)
    result = align(found, state, found.apply(planted, state), seed=0)
    assert result.element @ planted == found.identity()


def test_stretches_filled_with_different_constants_stay_apart():
    net = PaddedShortcut(0.0, 1.0)
    found = discover_symmetry(net, INPUTS)
    assert found.log10_order() == pytest.approx(orders(NARROW, PADDED, PADDED))
    assert not any("defect" in note for note in found.notes)
    # they are candidates, and it is the proof that rejects them
    candidates = sibling_factors(found)
    assert candidates
    verdict = merge_siblings(found, candidates).check(net, INPUTS)
    assert not verdict.passed
    assert verdict.max_relative_error > 1e-7


def test_stretches_that_something_tells_apart_are_no_candidates():
    class Told(PaddedShortcut):
        def __init__(self):
            super().__init__()
            self.extra = nn.Linear(PADDED, 2)

        def forward(self, x):
            x = self.stem(x).relu()
            zeros = torch.zeros(len(x), PADDED, *x.shape[2:])
            y = (self.norm(self.wide(x)) + torch.cat([zeros, x, zeros], 1)).relu()
            pooled = nn.functional.adaptive_avg_pool2d(y, 2)
            return self.head(pooled.flatten(1)), self.extra(pooled[:, :PADDED].mean((2, 3)))

    found = discover_symmetry(Told(), INPUTS)
    assert found.log10_order() == pytest.approx(orders(NARROW, PADDED, PADDED))
    assert not sibling_factors(found)
