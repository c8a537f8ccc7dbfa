"""The least mass under scales: unique, balanced, the same function; and matching after it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.errors import WorkbenchError
from workbench.matching import align
from workbench.symmetry import discover_symmetry
from workbench.symmetry.mass import min_mass


class Residual(nn.Module):
    """ReLU blocks that read and write one stream without a norm: channels of the stream and hidden units each have a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(5, 8)
        self.up = nn.ModuleList(nn.Linear(8, 6) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(6, 8) for _ in range(2))
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        x = self.read(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(up(x).relu())
        return self.out(x)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(9, 6), nn.RMSNorm(6)
        self.gate, self.up, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)
        self.out = nn.Linear(6, 9)

    def forward(self, ids):
        x = self.embed(ids)
        y = self.norm(x)
        return self.out(x + self.down(F.silu(self.gate(y)) * self.up(y)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


CASES = {
    "mlp": (mlp, lambda: torch.randn(4, 5)),
    "residual": (Residual, lambda: torch.randn(4, 5)),
    "batch norm and flatten": (conv, lambda: torch.randn(2, 3, 8, 8)),
    "gated with norm": (Gated, lambda: torch.randint(0, 9, (2, 4))),
}


def made(name):
    torch.manual_seed(0)
    make, draw = CASES[name]
    model, inputs = make().double().eval(), draw()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    return model, inputs, discover_symmetry(model, (inputs,), scales=True)


@pytest.mark.parametrize("name", CASES)
def test_the_least_is_unique_and_keeps_the_function(name):
    model, inputs, symmetry = made(name)
    state = model.state_dict()
    found = min_mass(symmetry, state)
    assert found.min_mass < found.mass
    assert found.ratio > 1
    after = torch.func.functional_call(model, found.state, (inputs,))
    before = model(inputs)
    assert float((before - after).abs().max()) <= 1e-9 * float(before.abs().max())
    for seed in range(10):
        rescaled = symmetry.apply(symmetry.element({}, symmetry.sample(seed).scales), state)
        again = min_mass(symmetry, rescaled)
        assert again.min_mass == pytest.approx(found.min_mass, rel=1e-12)
        for key, tensor in found.state.items():
            assert float((again.state[key] - tensor).abs().max()) <= 1e-8 * (1 + float(tensor.abs().max())), (seed, key)


def test_what_goes_in_weighs_as_much_as_what_comes_out():
    model, _, symmetry = made("mlp")
    state = min_mass(symmetry, model.state_dict()).state
    incoming = state["0.weight"].square().sum(1) + state["0.bias"].square()
    torch.testing.assert_close(incoming, state["2.weight"].square().sum(0), rtol=1e-8, atol=0)
    # the control: it does not in the network as it was made
    before = model.state_dict()
    assert not torch.allclose(before["0.weight"].square().sum(1) + before["0.bias"].square(), before["2.weight"].square().sum(0))


def test_any_other_rescaling_is_heavier():
    model, _, symmetry = made("residual")
    least = min_mass(symmetry, model.state_dict())
    for seed in range(5):
        other = symmetry.apply(symmetry.element({}, symmetry.sample(seed).scales), least.state)
        assert sum(float(t.square().sum()) for t in other.values()) > least.min_mass


def test_dead_units_are_held_and_counted():
    model, _, symmetry = made("mlp")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["2.weight"][:, 3] = 0
    found = min_mass(symmetry, state)
    assert dict(found.held) == {"scale of 0": 1}
    assert torch.equal(found.state["0.weight"][3], state["0.weight"][3])


def test_a_symmetry_without_scales_is_refused():
    model, inputs, _ = made("mlp")
    with pytest.raises(WorkbenchError, match="holds no scales"):
        min_mass(discover_symmetry(model, (inputs,)), model.state_dict())


@pytest.mark.parametrize("name", ["mlp", "residual", "gated with norm"])
def test_matching_after_it_finds_what_rescaling_hid(name):
    """A copy with its units moved and rescaled: balanced first, matching finds the permutation; as they are, it does no better."""
    model, _, symmetry = made(name)
    state = model.state_dict()
    recovered = {"balanced": 0, "as they are": 0}
    for seed in range(5):
        planted = symmetry.sample(seed)
        wide = {key: values**4 for key, values in planted.scales.items()}
        copy = symmetry.apply(symmetry.element(planted.permutations, wide), state)
        for kind, (anchor, moving) in {
            "balanced": (min_mass(symmetry, state).state, min_mass(symmetry, copy).state),
            "as they are": (state, copy),
        }.items():
            found = align(symmetry, anchor, moving, seed=0).element.restrict(symmetry.groups)
            recovered[kind] += (found @ planted.restrict(symmetry.groups)).restrict(symmetry.groups).is_identity
    assert recovered["balanced"] == 5
    assert recovered["balanced"] >= recovered["as they are"]
