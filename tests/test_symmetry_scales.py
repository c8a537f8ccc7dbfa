"""Scales and signs: the kernels against the theory, the laws of elements that carry them, and the proof that rejects wrong ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.errors import WorkbenchError
from workbench.symmetry import Symmetry, discover_symmetry
from workbench.symmetry.scaling import SCALE, SIGN, Scaling

X = (torch.randn(2, 5),)
TOKENS = (torch.randint(0, 11, (2, 4)),)
D = 6


class Net(nn.Module):
    def __init__(self, run, **modules) -> None:
        super().__init__()
        self.run = run
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs):
        return self.run(self, *inputs)


def pointwise(activation) -> nn.Module:
    return nn.Sequential(nn.Linear(5, D), activation, nn.Linear(D, 3))


class Powers(nn.Module):
    def __init__(self, power) -> None:
        super().__init__()
        self.power = power

    def forward(self, x):
        return x.relu() ** self.power


def gated(net, x):
    return net.down(F.silu(net.gate(x)) * net.up(x))


def rms_stream(net, ids):
    x = net.embed(ids)
    x = x + net.down(F.gelu(net.up(net.first(x))))
    return net.out(net.last(x))


def stream(norm, tied=False) -> nn.Module:
    net = Net(
        rms_stream,
        embed=nn.Embedding(11, D),
        first=norm(D),
        up=nn.Linear(D, 7, bias=False),
        down=nn.Linear(7, D, bias=False),
        last=norm(D),
        out=nn.Linear(D, 11, bias=False),
    )
    if tied:
        net.out.weight = net.embed.weight
    return net


class Attention(nn.Module):
    """Two query heads of 4 on ``groups`` key and value heads; rotary: positions turn pairs (i, i + 2) of queries and keys."""

    def __init__(self, *, rotary: bool = False, groups: int = 2, norm: bool = False) -> None:
        super().__init__()
        self.read, self.out = nn.Linear(5, D), nn.Linear(D, 3)
        self.q, self.k, self.v = (nn.Linear(D, 4 * heads, bias=False) for heads in (2, groups, groups))
        self.o = nn.Linear(8, D, bias=False)
        self.rotary, self.groups = rotary, groups
        self.q_norm = nn.RMSNorm(4) if norm else nn.Identity()
        self.k_norm = nn.RMSNorm(4) if norm else nn.Identity()

    def forward(self, x):
        x = F.gelu(self.read(x))
        q, k, v = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q(x), self.k(x), self.v(x)))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary:
            angle = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1]).repeat(2)
            q, k = (t * angle.cos() + torch.cat([-t[..., 2:], t[..., :2]], -1) * angle.sin() for t in (q, k))
        k, v = (t.repeat_interleave(2 // self.groups, 1) for t in (k, v))
        y = (q @ k.mT / 2).softmax(-1) @ v
        return self.out(x + self.o(y.transpose(1, 2).flatten(2)))


WORDS = (torch.randn(2, 3, 5),)


def recurrent(kind) -> nn.Module:
    return Net(lambda net, x: net.out(net.cell(x)[0]), cell=kind(5, D), out=nn.Linear(D, 3))


def conv_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 2)
    )


IMAGES = (torch.randn(2, 3, 8, 8),)

# (model, inputs, dimension of the positive scales, log2 of the sign changes), each counted by hand from the definition.
KERNELS = {
    "ReLU: one scale a unit": (lambda: pointwise(nn.ReLU()), X, D, 0),
    "leaky ReLU": (lambda: pointwise(nn.LeakyReLU()), X, D, 0),
    "PReLU with a slope for each unit": (lambda: pointwise(nn.PReLU(D)), X, D, 0),
    "ReLU squared: the reader takes the square": (lambda: pointwise(Powers(2)), X, D, 0),
    "GELU: nothing": (lambda: pointwise(nn.GELU()), X, 0, 0),
    "sigmoid: no sign without a change of the bias": (lambda: pointwise(nn.Sigmoid()), X, 0, 0),
    "tanh: one sign a unit": (lambda: pointwise(nn.Tanh()), X, 0, D),
    "no activation: scales and signs": (lambda: pointwise(nn.Identity()), X, D, D),
    "gated: up and down, not the gate": (
        lambda: Net(gated, gate=nn.Linear(5, D), up=nn.Linear(5, D), down=nn.Linear(D, 3)), X, D, D,
    ),
    # conv row, bias and running mean against the gain (4); gain and shift against the reader (4); the last layers are linear (5)
    "convolution with batch norm": (conv_norm, IMAGES, 4 + 4 + 5, 4 + 5),
    # each gain against its readers (2 D); signs also of the stream itself
    "RMSNorm stream": (lambda: stream(nn.RMSNorm), TOKENS, 2 * D, 3 * D),
    "RMSNorm stream, tied": (lambda: stream(nn.RMSNorm, tied=True), TOKENS, D, 2 * D),
    # no sign of a single channel of the stream: the mean would change. Gains and shifts against their readers only
    "LayerNorm stream": (lambda: stream(nn.LayerNorm), TOKENS, 2 * D, 2 * D),
    # query against key, and value against output, for each unit of each head
    "attention": (Attention, WORDS, 2 * 4 + 2 * 4, 2 * 4 + 2 * 4),
    "grouped-query attention": (lambda: Attention(groups=1), WORDS, 4 + 4, 4 + 4),
    # one scale for each rotated pair of each head, and a pair flips as a whole
    "rotary attention": (lambda: Attention(rotary=True), WORDS, 2 * 2 + 2 * 4, 2 * 2 + 2 * 4),
    # gains of queries and keys are shared by the heads: gain against gain (4); signs for each unit: rows of q, rows of k, both
    # gains, of which the product is 1 (3 · 4), and of whole heads of q and k (2); values as ever
    "attention with query and key norms": (lambda: Attention(norm=True), WORDS, 4 + 2 * 4, 3 * 4 + 2 + 2 * 4),
    "tanh RNN": (lambda: recurrent(nn.RNN), WORDS, 0, D),
    "LSTM": (lambda: recurrent(nn.LSTM), WORDS, 0, D),
    "GRU": (lambda: recurrent(nn.GRU), WORDS, 0, D),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_scales_and_signs_are_those_of_the_theory(name):
    make, inputs, scales, signs = KERNELS[name]
    torch.manual_seed(0)
    found = discover_symmetry(make(), inputs, scales=True, signs=True)
    assert (found.scale_dimension, found.sign_bits) == (scales, signs), list(found.scalings)
    assert found.proof.passed
    assert not any("defect" in note for note in found.notes)


def test_they_are_found_only_where_asked_for():
    model = pointwise(nn.Identity())
    assert not discover_symmetry(model, X).scalings
    assert {s.kind for s in discover_symmetry(model, X, scales=True).scalings.values()} == {SCALE}
    assert {s.kind for s in discover_symmetry(model, X, signs=True).scalings.values()} == {SIGN}


@pytest.fixture(scope="module", params=["attention", "convolution with batch norm", "LSTM", "RMSNorm stream, tied"])
def case(request):
    torch.manual_seed(0)
    make, inputs, *_ = KERNELS[request.param]
    model = make().double().eval()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    return model, inputs, discover_symmetry(model, inputs, scales=True, signs=True)


def close(a, b) -> bool:
    return all(torch.allclose(a[name], b[name], rtol=1e-12, atol=1e-13) for name in a)


def test_elements_compose_and_invert(case):
    model, _, symmetry = case
    state = {name: torch.randn_like(t) if t.is_floating_point() else t for name, t in model.state_dict().items()}
    for alias, name in symmetry.aliases.items():
        state[alias] = state[name]
    g, h, k = (symmetry.sample(seed) for seed in (1, 2, 3))
    assert close(symmetry.apply(g @ h, state), symmetry.apply(g, symmetry.apply(h, state)))
    assert close(symmetry.apply((g @ h) @ k, state), symmetry.apply(g @ (h @ k), state))
    assert close(symmetry.apply(g.inverse(), symmetry.apply(g, state)), state)
    assert close(symmetry.apply(g @ g.inverse(), state), state)
    # composing in the wrong order is another element
    assert not close(symmetry.apply(h @ g, state), symmetry.apply(g @ h, state))
    assert not symmetry.sample(1).is_identity
    assert symmetry.identity().is_identity


def test_the_function_is_kept_on_the_model_itself(case):
    model, inputs, symmetry = case
    before = model(*inputs)
    moved = symmetry.apply(symmetry.sample(4), model.state_dict())
    after = torch.func.functional_call(model, moved, inputs, tie_weights=False)
    pairs = zip(before, after, strict=True) if isinstance(before, tuple) else [(before, after)]
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in pairs if isinstance(a, torch.Tensor))


def test_they_survive_saving(case, tmp_path):
    model, _, symmetry = case
    loaded = Symmetry.load(symmetry.save(tmp_path / "symmetry.json"))
    assert loaded.scalings == symmetry.scalings
    state = model.state_dict()
    one, two = (s.apply(s.sample(9), state) for s in (symmetry, loaded))
    assert all(torch.equal(one[name], two[name]) for name in state)


def test_an_element_without_scales_moves_bit_for_bit(case):
    model, _, symmetry = case
    state = model.state_dict()
    plain = symmetry.sample(5).restrict(symmetry.groups)
    moved = symmetry.apply(plain, state)
    assert all(torch.equal(moved[name].flatten().sort().values, state[name].flatten().sort().values) for name in state)


def wrong(symmetry: Symmetry, kind: str, powers) -> Symmetry:
    return replace(symmetry, scalings={"wrong": Scaling("wrong", "0", kind, D, (), (), powers)})


@pytest.mark.parametrize(
    ("activation", "kind", "reader"),
    [(nn.GELU(), SCALE, -1), (nn.ReLU(), SIGN, 1), (nn.ReLU(), SCALE, 1), (nn.Tanh(), SCALE, -1), (Powers(2), SCALE, -1)],
)
def test_the_proof_rejects_what_the_activation_does_not_allow(activation, kind, reader):
    model = pointwise(activation)
    symmetry = discover_symmetry(model, X)
    powers = {("0.weight", 0, 0): 1, ("0.bias", 0, 0): 1, ("2.weight", 1, 0): reader}
    verdict = wrong(symmetry, kind, powers).check(model, X)
    assert not verdict.passed
    assert verdict.per_group["wrong"] > 1e-7
    assert all(error < 1e-9 for name, error in verdict.per_group.items() if name != "wrong")


def test_a_small_number_under_a_root_is_an_addend():
    """x / √(mean x² + ε): the ε does not scale, however small; without it the scale is true."""

    def normed(eps):
        def run(net, x):
            y = net.first(x)
            return net.second((y / (y.pow(2).mean(-1, keepdim=True) + eps).sqrt()).unsqueeze(-1).flatten(1))

        return Net(run, first=nn.Linear(5, D), second=nn.Linear(D, 3))

    found = discover_symmetry(normed(1e-6), X, scales=True)
    assert found.scale_dimension == 0
    assert not any("defect" in note for note in found.notes)


def test_wrong_numbers_are_refused():
    symmetry = discover_symmetry(pointwise(nn.Identity()), X, scales=True, signs=True)
    scale, sign = symmetry.scalings
    with pytest.raises(WorkbenchError, match="positive numbers of shape"):
        symmetry.element({}, {scale: -torch.ones(D)})
    with pytest.raises(WorkbenchError, match="1 and −1 of shape"):
        symmetry.element({}, {sign: torch.full((D,), 0.5)})
    with pytest.raises(WorkbenchError, match="No scaling is called"):
        symmetry.element({}, {"other": torch.ones(D)})
