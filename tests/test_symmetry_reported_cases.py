"""What went wrong elsewhere on ordinary models, each with its right result, and models in every state a caller may bring."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from test_symmetry_discovery import Net, moved_and_original_agree, orders
from torch import nn

from workbench.states import fingerprint
from workbench.symmetry import discover_symmetry
from workbench.symmetry.group import CONSTANT, FIXED, MOVED, UNUSED


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 with batch norms, and a projection on the shortcut of the first block of a stage."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        if inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


def test_a_stage_of_bottlenecks_is_one_stream_with_its_projection_and_statistics():
    """Every key is accounted for; nothing is left behind: conv3, the shortcut's norm, the running statistics of all blocks."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), Bottleneck(4, 3, 8), Bottleneck(8, 5, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    found = discover_symmetry(model, (torch.randn(2, 3, 8, 8),))
    assert found.log10_order() == pytest.approx(orders(4, 3, 3, 8, 5, 5))
    (stream,) = [group for group in found.groups.values() if ("5.weight", 1) in {(m.tensor, m.axis) for m in group.members}]
    norms = ("1.bn3", "1.downsample.1", "2.bn3")
    wanted = {f"{norm}.{part}" for norm in norms for part in ("weight", "bias", "running_mean", "running_var")}
    wanted |= {"1.conv3.weight", "1.downsample.0.weight", "2.conv3.weight", "2.conv1.weight", "5.weight"}
    assert {member.tensor for member in stream.members} == wanted
    assert set(found.tensors) == set(model.state_dict())
    assert {entry.role for name, entry in found.tensors.items() if "num_batches" in name} == {CONSTANT}
    assert all(entry.role in (MOVED, FIXED, CONSTANT, UNUSED) for entry in found.tensors.values())
    moved_and_original_agree(model, found, found.sample(1), (2, 3, 8, 8))


def test_a_transposed_convolution_of_two_groups():
    """Its weight is (in, out / groups, h, w): groups change places, and on either side what is inside each is free."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 2, 1))
    found = discover_symmetry(model, (torch.randn(2, 3, 6, 6),))
    assert found.log10_order() == pytest.approx(orders(2, 4, 4, 3, 3))
    moved_and_original_agree(model, found, found.sample(1), (2, 3, 6, 6))


@pytest.mark.parametrize(("kind", "gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
def test_stacked_recurrences_repeat_one_order_in_every_gate(kind, gates):
    net = Net(lambda m, x: m.head(m.cell(x)[0]), cell=kind(5, 6, 2, batch_first=True), head=nn.Linear(6, 2))
    found = discover_symmetry(net, (torch.randn(2, 7, 5),))
    assert found.log10_order() == pytest.approx(orders(6, 6))
    first = next(g for g in found.groups.values() if ("cell.weight_ih_l0", 0) in {(m.tensor, m.axis) for m in g.members})
    assert {(m.tensor, m.axis) for m in first.members} == {
        ("cell.weight_ih_l0", 0), ("cell.weight_hh_l0", 0), ("cell.weight_hh_l0", 1), ("cell.bias_ih_l0", 0),
        ("cell.bias_hh_l0", 0), ("cell.weight_ih_l1", 1),
    }  # fmt: skip
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    state = net.state_dict()
    moved = found.apply(found.element({first.name: order}), state)
    assert torch.equal(moved["cell.bias_hh_l0"].view(gates, 6), state["cell.bias_hh_l0"].view(gates, 6)[:, order])
    moved_and_original_agree(net, found, found.sample(1), (2, 7, 5))


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


def detached(m, x):
    return m.head(torch.relu(m.a(x)).detach())


def without_gradients(m, x):
    with torch.no_grad():
        h = torch.relu(m.a(x))
    return m.head(h)


@pytest.mark.parametrize("forward", [detached, without_gradients, lambda m, x: m.head(Cubed.apply(m.a(x)))])
def test_what_autograd_cannot_follow_is_followed(forward):
    net = Net(forward, a=nn.Linear(5, 6), head=nn.Linear(6, 2)).requires_grad_(False)
    found = discover_symmetry(net, (torch.randn(2, 5),))
    assert found.log10_order() == pytest.approx(orders(6))
    assert found.proof.passed
    assert not any(p.requires_grad for p in net.parameters())


def test_channels_on_both_sides_of_an_unknown_operation_are_pinned_by_module_name():
    net = Net(
        lambda m, x: m.head(torch.relu(m.second(m.odd(m.first(x))))),
        first=nn.Linear(5, 6),
        odd=Net(lambda m, x: torch.special.bessel_j0(x)),
        second=nn.Linear(6, 7),
        head=nn.Linear(7, 2),
    )
    found = discover_symmetry(net, (torch.randn(2, 5),))
    reasons = {(p.tensor, p.axis): p.reason for p in found.pinned}
    for place in (("first.weight", 0), ("first.bias", 0), ("second.weight", 1)):
        assert "special_bessel_j0 in odd" in reasons[place]
    assert list(found.groups) == ["second"]


@dataclass
class Answer:
    logits: torch.Tensor
    parts: dict


torch.export.register_dataclass(Answer, serialized_type_name="tests.Answer")  # as torch.export asks of such types


class ManyWays(nn.Module):
    """Two inputs by name; a registered dataclass that holds a dict with a list in it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head, self.other = nn.Linear(5, 6), nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 3)

    def forward(self, left, right):
        h = torch.tanh(self.a(left) + self.b(right))
        return Answer(self.head(h), {"more": [self.other(h), h.sum(-1)]})


def test_several_inputs_by_name_and_nested_outputs():
    found = discover_symmetry(ManyWays(), {"right": torch.randn(2, 4), "left": torch.randn(2, 5)})
    assert found.log10_order() == pytest.approx(orders(6))
    assert found.proof.passed


# -- models in every state a caller may bring


class Block(nn.Module):
    """A convolution with batch norm, attention of two heads with dropout, LayerNorm: what depends on mode and on precision."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv1d(5, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x))).mT
        y = self.norm(x)
        return self.head(x + self.drop(self.attention(y, y, y, need_weights=False)[0]))


def shape_of(found):
    """The group without the proof: factors by size, what they are over, and every axis they move."""
    return {name: (g.size, g.over, tuple((m.tensor, m.axis, m.layout) for m in g.members)) for name, g in found.groups.items()}


VARIANTS = {
    "evaluation": lambda model: model.eval(),
    "training": lambda model: model.train(),
    "frozen": lambda model: model.requires_grad_(False),
    "one part frozen, one in training": lambda model: (model.eval(), model.norm.requires_grad_(False), model.drop.train())[0],
    "float16": lambda model: model.half(),
    "bfloat16": lambda model: model.bfloat16(),
    "float64": lambda model: model.double(),
    "meta": lambda model: model.to("meta"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_group_does_not_depend_on_the_state_of_the_model_which_stays_as_it_was(name):
    torch.manual_seed(0)
    plain = discover_symmetry(Block().eval(), (torch.randn(2, 5, 7),))
    # 8 channels of the stream; 2 heads; 4 inside query and key, 4 inside value and output of each
    assert plain.log10_order() == pytest.approx(orders(8, 2, 4, 4, 4, 4))
    model = VARIANTS[name](Block())
    some = next(model.parameters())
    x = torch.randn(2, 5, 7).to(device=some.device, dtype=some.dtype)

    def state():
        modes = [(path, module.training) for path, module in model.named_modules()]
        flags = [(n, p.requires_grad, p.dtype, p.device, id(p), p.grad) for n, p in model.named_parameters()]
        return modes, flags, None if name == "meta" else fingerprint(model.state_dict())

    before, generator = state(), torch.random.get_rng_state()
    found = discover_symmetry(model, (x,))
    assert state() == before
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert shape_of(found) == shape_of(plain)
    assert (found.proof is None) == (name == "meta")
    assert name == "meta" or found.proof.passed
    assert not any("defect" in note for note in found.notes)


class Cached(nn.Module):
    """Returns scores and, as a language model does, the keys and values of every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(5, 6), nn.Linear(6, 3)
        self.q, self.k, self.v, self.o = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        x = self.stem(x)
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return {"logits": self.head(x + self.o(y)), "past": [(k, v)]}


def test_a_returned_cache_pins_heads_unless_it_is_said_not_to_matter():
    model, x = Cached(), (torch.randn(2, 7, 5),)
    all_outputs = discover_symmetry(model, x)
    assert all_outputs.log10_order() == pytest.approx(orders(6))  # the stream alone
    reasons = {(p.tensor, p.axis): p.reason for p in all_outputs.pinned}
    assert "output" in reasons["k.weight", 0]
    found = discover_symmetry(model, x, outputs=["logits"])
    assert found.log10_order() == pytest.approx(orders(6, 2, 4, 4, 4, 4))
    assert found.proof.passed
    # the proof of the larger group is about the scores only: on all outputs the same group fails
    assert not replace(found, outputs=None).check(model, x).passed


def test_coverage_counts_what_moves_of_what_is_used():
    net = Net(lambda m, x: m.head(torch.relu(m.a(x))) + m.gain, a=nn.Linear(5, 6), head=nn.Linear(6, 2), spare=nn.Linear(9, 9))
    net.gain = nn.Parameter(torch.ones(2))
    found = discover_symmetry(net, (torch.randn(2, 5),))
    # moved: a (5·6 + 6) and the head's weight 6·2; not moved: the head's bias 2 and the gain 2; never used: spare
    assert found.coverage == pytest.approx((36 + 12) / (36 + 12 + 2 + 2))
    assert {name for name, entry in found.tensors.items() if entry.role == UNUSED} == {"spare.weight", "spare.bias"}
    assert math.isclose(discover_symmetry(nn.Linear(5, 3), (torch.randn(2, 5),)).coverage, 0.0)


@dataclass
class Plain:
    """Never shown to torch.export."""

    values: torch.Tensor
    more: dict


def test_a_dataclass_that_nobody_registered_is_an_output_like_any_other():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 3)

        def forward(self, x):
            hidden = self.first(x).relu()
            return Plain(self.second(hidden), {"hidden": [hidden]})

    inputs = (torch.randn(2, 5),)
    assert discover_symmetry(Net(), inputs).log10_order() == 0
    assert discover_symmetry(Net(), inputs, outputs=["values"]).groups["first"].size == 6
