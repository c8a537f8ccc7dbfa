"""Operations that look homogeneous, odd or linear and are not: the degrees themselves must say so, before any proof by test.

On a model without values (meta) nothing is proved, so a rule that leans on the proof would claim what does not hold.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.symmetry import discover_symmetry
from workbench.symmetry.degree_rules import DegreeRule

D = 6
X = (torch.randn(4, 5),)


class Net(nn.Module):
    """Two readers of the input, ``a`` and ``b``, and one layer that reads what ``run`` makes of them."""

    def __init__(self, run, width: int = D) -> None:
        super().__init__()
        self.run = run
        self.a, self.b, self.out = nn.Linear(5, D), nn.Linear(5, D), nn.Linear(width, 3)
        self.shift, self.one = nn.Parameter(torch.randn(D)), nn.Parameter(torch.randn(1))

    def forward(self, x):
        return self.run(self, x)


def after(function):
    return lambda m, x: m.out(function(m.a(x)))


def of_two(function):
    return lambda m, x: m.out(function(m.a(x), m.b(x)))


def beside(other):
    return lambda m, x: m.out(torch.cat([other(x), m.a(x).relu()[:, None]], 1).sum(1))


# (what is run, width read, dimension of the scales, sign bits), counted by hand
TRAPS = {
    "copy as whole numbers": (after(lambda y: (y * 10).to(torch.int32).float()), D, 0, 0),
    "copy as truth": (after(lambda y: y.relu().bool().float()), D, 0, 0),
    "quotient rounded down": (after(lambda y: torch.div(y, 0.1, rounding_mode="floor")), D, 0, 0),
    "quotient of two rounded down": (of_two(lambda y, z: torch.div(y, z, rounding_mode="floor")), D, 0, 0),
    "a power that is no fraction": (after(lambda y: y.relu().pow(0.33371234)), D, 0, 0),
    "a power that is one": (after(lambda y: y.relu().pow(1 / 3)), D, D, 0),
    "truth added": (after(lambda y: y.relu() + True), D, 0, 0),
    "a number read from a weight added": (lambda m, x: m.out(m.a(x).relu() + m.b.bias.sum().item()), D, 0, 0),
    "a number read from a weight multiplied": (lambda m, x: m.out(m.a(x).relu() * m.b.bias.sum().item()), D, D, 0),
    "the larger of two": (of_two(torch.maximum), D, D, 0),
    "one of two, by comparison": (of_two(lambda y, z: torch.where(y > z, y, z)), D, D, 0),
    "one of two, by comparison with 1": (of_two(lambda y, z: torch.where(y > 1, y, z)), D, 0, 0),
    # which entries are 0 is all that is seen of either layer
    "count of entries": (of_two(lambda y, z: torch.stack([y, z], 1).norm(p=0, dim=1)), D, 2 * D, 2 * D),
    "norm without a weight, with a bias": (lambda m, x: m.out(F.layer_norm(m.a(x), (D,), None, m.shift)), D, 0, 0),
    "an empty product with a shared shift": (
        lambda m, x: m.out(torch.addmm(m.one, torch.zeros(4, 5), m.a.weight.t()).relu() + m.a(x).relu()), D, 0, 0,
    ),
    "bounds of opposite sign": (after(lambda y: y.clamp(-1, 1)), D, 0, D),
    "other bounds": (after(lambda y: y.clamp(-1, 2)), D, 0, 0),
    "an upper bound of 0": (after(lambda y: y.clamp(max=0)), D, D, 0),
    "ones laid beside": (beside(lambda x: torch.ones(4, 1, D)), D, 0, 0),
    "zeros laid beside": (beside(lambda x: torch.zeros(4, 1, D)), D, D, 0),
    "an input laid beside": (beside(lambda x: x[:, :1, None].expand(-1, 1, D)), D, 0, 0),
    "ones laid beside, then viewed as rows": (
        lambda m, x: m.out(torch.cat([m.a(x), torch.ones(4, D)], 1).view(4, 2, D).sum(1)), D, 0, 0,
    ),
    "repeated side by side": (after(lambda y: y.relu().repeat(1, 3)), 3 * D, D, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_the_degrees_are_right_before_the_proof(name):
    run, width, scales, signs = TRAPS[name]
    torch.manual_seed(0)
    found = discover_symmetry(Net(run, width), X, scales=True, signs=True)
    assert not [note for note in found.notes if "defect" in note]
    assert (found.scale_dimension, found.sign_bits) == (scales, signs)
    assert found.proof.passed


def test_a_scale_that_fails_the_proof_takes_its_general_linear_group_along(monkeypatch):
    """The control: with the rule for rounding switched off the proof rejects the scale, and nothing larger is reported either."""
    run, width, *_ = TRAPS["copy as whole numbers"]
    monkeypatch.setattr(DegreeRule, "_rounds", lambda self: False)
    found = discover_symmetry(Net(run, width), X, scales=True, signs=True)
    assert any("defect" in note and "scale of a" in note for note in found.notes)
    assert not found.linear
    assert found.scale_dimension == 0


def test_instance_norm_gives_gain_and_shift_against_the_reader():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Conv2d(4, 2, 1))
    found = discover_symmetry(model, (torch.randn(2, 3, 8, 8),), scales=True, signs=True)
    assert (found.scale_dimension, found.sign_bits) == (4, 0)
    assert {tensor for s in found.scalings.values() for tensor in s.tensors} == {"1.weight", "1.bias", "3.weight"}
