"""Changes of basis that are reported: GL between linear maps, rotations of rotary pairs; all proved, none claimed that fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_symmetry_scales import WORDS, Attention, D, Net, X, gated, pointwise
from torch import nn

from workbench.symmetry import LinearFactor, Symmetry, change_basis, discover_symmetry


def reported(make, inputs):
    torch.manual_seed(0)
    found = discover_symmetry(make(), inputs, scales=True)
    assert found.proof.passed
    assert not any("defect" in note for note in found.notes)
    return {(f.kind, f.shape, frozenset(f.tensors)) for f in found.linear}


VALUES = ("general", (2, 4, 4), frozenset({"v.weight", "o.weight"}))
KEYS = frozenset({"q.weight", "k.weight"})


def test_factors_between_linear_maps_are_reported_with_their_general_linear_group():
    assert reported(Attention, WORDS) == {VALUES, ("general", (2, 4, 4), KEYS)}
    # norms stand between queries and keys, and an activation between the layers
    assert reported(lambda: Attention(norm=True), WORDS) == {VALUES}
    assert reported(lambda: pointwise(nn.Identity()), X) == {("general", (D, D), frozenset({"0.weight", "0.bias", "2.weight"}))}
    assert reported(lambda: pointwise(nn.ReLU()), X) == set()
    assert reported(lambda: Net(gated, gate=nn.Linear(5, D), up=nn.Linear(5, D), down=nn.Linear(D, 3)), X) == set()


class Turned(nn.Module):
    """Two query heads of 6 on ``groups`` key heads; the first four units of a head are turned by position, the last two not."""

    def __init__(self, how: str = "halves", groups: int = 2) -> None:
        super().__init__()
        self.how, self.groups = how, groups
        self.read, self.out = nn.Linear(5, D), nn.Linear(D, 3)
        self.q, self.k = nn.Linear(D, 12, bias=False), nn.Linear(D, 6 * groups, bias=False)
        self.v, self.o = nn.Linear(D, 8, bias=False), nn.Linear(8, D, bias=False)

    def turn(self, t):
        turned, rest = t[..., :4], t[..., 4:]
        angle = torch.arange(t.shape[-2])[:, None] * torch.tensor([1.0, 0.1])
        cos, sin = angle.cos(), angle.sin()
        if self.how == "pairs":
            a, b = turned[..., ::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        elif self.how == "complex":
            z = torch.view_as_complex(turned.unflatten(-1, (2, 2)).contiguous())
            turned = torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
        elif self.how == "hyperbolic":
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cos + b * sin, b * cos + a * sin], -1)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([turned, rest], -1)

    def forward(self, x):
        x = F.gelu(self.read(x))
        q, k = (self.turn(part.unflatten(-1, (-1, 6)).transpose(1, 2)) for part in (self.q(x), self.k(x)))
        v = self.v(x).unflatten(-1, (2, 4)).transpose(1, 2)
        y = (q @ k.repeat_interleave(2 // self.groups, 1).mT / 2).softmax(-1) @ v
        return self.out(x + self.o(y.transpose(1, 2).flatten(2)))


def test_pairs_turned_by_their_position_may_be_turned_and_scaled():
    """One matrix for each head and frequency: arXiv 2104.09864 has the turns, and only rotations and scales commute with all."""
    rotations = ("rotation-scale", (2, 2, 2, 2), KEYS)
    assert reported(lambda: Attention(rotary=True), WORDS) == {VALUES, rotations}
    assert reported(Turned, WORDS) >= {VALUES, rotations}
    # one key head for two query heads: the same turn in both
    assert reported(lambda: Turned(groups=1), WORDS) >= {("rotation-scale", (2, 2, 2), KEYS)}


class Packed(Turned):
    """Queries, keys and values are rows of one matrix: one block after another, or head by head."""

    def __init__(self, how: str = "halves", *, by_head: bool = False, turned: bool = True) -> None:
        super().__init__(how)
        del self.q, self.k, self.v
        self.qkv, self.o = nn.Linear(D, 36), nn.Linear(12, D, bias=False)
        self.by_head, self.turned = by_head, turned

    def forward(self, x):
        x = F.gelu(self.read(x))
        if self.by_head:
            q, k, v = self.qkv(x).unflatten(-1, (2, -1)).transpose(1, 2).chunk(3, -1)
        else:
            q, k, v = (part.unflatten(-1, (2, 6)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.turned:
            q, k = self.turn(q), self.turn(k)
        return self.out(x + self.o(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)))


PACKED = frozenset({"qkv.weight", "qkv.bias"})
PACKED_VALUES = ("general", (2, 6, 6), PACKED | {"o.weight"})


@pytest.mark.parametrize("by_head", [False, True])
def test_queries_and_keys_of_one_matrix_take_opposite_powers(by_head):
    assert reported(lambda: Packed(by_head=by_head, turned=False), WORDS) == {PACKED_VALUES, ("general", (2, 6, 6), PACKED)}
    for how in ("halves", "pairs"):
        found = reported(lambda how=how: Packed(how, by_head=by_head), WORDS)
        # four units of a head in two turned pairs, and two that are not turned
        assert found == {PACKED_VALUES, ("rotation-scale", (2, 2, 2, 2), PACKED), ("general", (2, 2, 2), PACKED)}
    hyperbolic = reported(lambda: Packed("hyperbolic", by_head=by_head), WORDS)
    assert not any(kind == "rotation-scale" for kind, _, _ in hyperbolic)


def test_neighbouring_units_may_be_the_pairs():
    for how in ("pairs", "complex"):
        assert ("rotation-scale", (2, 2, 2, 2), KEYS) in reported(lambda how=how: Turned(how), WORDS)


def test_a_bilinear_map_takes_a_change_of_basis_on_each_side():
    def net(one, other):
        layers = {"a": nn.Linear(5, D), "b": nn.Linear(5, 4), "both": nn.Bilinear(D, 4, 3)}
        return lambda: Net(lambda m, x: m.both(one(m.a(x)), other(m.b(x))), **layers)

    left = ("general", (D, D), frozenset({"a.weight", "a.bias", "both.weight"}))
    right = ("general", (4, 4), frozenset({"b.weight", "b.bias", "both.weight"}))
    same = nn.Identity()
    assert reported(net(same, same), X) == {left, right}
    assert reported(net(torch.relu, same), X) == {right}
    assert reported(net(same, torch.tanh), X) == {left}
    read = Net(lambda m, x: m.out(m.both(x, x)), both=nn.Bilinear(5, 5, D), out=nn.Linear(D, 3))
    assert reported(lambda: read, X) == {("general", (D, D), frozenset({"both.weight", "both.bias", "out.weight"}))}


def test_pairs_that_scale_together_but_do_not_turn_are_not_reported():
    """Turned by a hyperbolic angle, which commutes with the scales of the pairs and not with rotations: no claim, and no defect."""
    found = reported(lambda: Turned("hyperbolic"), WORDS)
    assert not any(kind == "rotation-scale" for kind, _, _ in found)


@pytest.mark.parametrize(
    "make",
    [
        Attention,
        lambda: Attention(rotary=True),
        Turned,
        lambda: Turned("pairs", groups=1),
        lambda: Turned("complex"),
        Packed,
        lambda: Packed("pairs", by_head=True),
        lambda: Packed(turned=False),
    ],
)
def test_what_is_reported_acts(make):
    """Random matrices keep the function of the module itself, and move its weights; without the inverse on the other side they
    do not."""
    torch.manual_seed(0)
    net = make().double()
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    symmetry = discover_symmetry(net, (x,), scales=True)
    before = net(x).detach()
    generator = torch.Generator().manual_seed(1)
    assert symmetry.linear
    for factor in symmetry.linear:
        changed = change_basis(symmetry, factor, factor.sample(generator), state)
        assert set(changed) == set(factor.tensors)
        assert all(float((changed[name] - state[name]).abs().max()) > 0.05 for name in changed)
        net.load_state_dict({**state, **changed})
        torch.testing.assert_close(net(x).detach(), before, rtol=1e-9, atol=1e-11)
        for name in changed:
            net.load_state_dict({**state, name: changed[name]})
            assert float((net(x) - before).detach().abs().max()) > 1e-6


def test_there_and_back():
    net = Attention(rotary=True).double()
    state = dict(net.state_dict())
    symmetry = discover_symmetry(net, (torch.randn(2, 3, 5, dtype=torch.float64),), scales=True)
    for factor in symmetry.linear:
        matrices = factor.sample(torch.Generator().manual_seed(0))
        moved = change_basis(symmetry, factor, matrices, state)
        back = change_basis(symmetry, factor, torch.linalg.inv(matrices), {**state, **moved})
        for name in factor.tensors:
            torch.testing.assert_close(back[name], state[name], rtol=1e-12, atol=1e-12)


def test_a_wrong_change_of_basis_is_rejected():
    """GL claimed over an activation, or with the power of one side turned round: the check must say so."""
    torch.manual_seed(0)
    net = Attention()
    symmetry = discover_symmetry(net, WORDS, scales=True)
    values = next(factor for factor in symmetry.linear if "v.weight" in factor.tensors)
    wrong = replace(values, powers=dict.fromkeys(values.powers, 1))
    verdict = replace(symmetry, linear=(wrong,)).check(net, WORDS)
    assert not verdict.passed
    assert verdict.per_group[wrong.name] > 1e-7
    assert all(error < 1e-9 for name, error in verdict.per_group.items() if name != wrong.name)

    mlp = pointwise(nn.ReLU())
    plain = discover_symmetry(mlp, X, scales=True)
    (factor,), (scaling,) = plain.groups, plain.scalings.values()
    claimed = LinearFactor(factor, D, 1, scaling.tensors, powers=scaling.powers)
    assert not replace(plain, linear=(claimed,)).check(mlp, X).passed


def test_changes_of_basis_are_saved_and_told(tmp_path):
    symmetry = discover_symmetry(Attention(rotary=True), WORDS, scales=True)
    loaded = Symmetry.load(symmetry.save(tmp_path / "symmetry.json"))
    assert loaded.linear == symmetry.linear
    assert "a rotation and a scale for each of 4 pairs of units, on q.weight, k.weight" in symmetry.explain()
    assert "all invertible 4 × 4 matrices for each of 2 copies, on v.weight, o.weight" in symmetry.explain()
    assert not discover_symmetry(Attention(rotary=True), WORDS).linear  # only where scales were asked for
