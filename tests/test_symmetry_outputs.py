"""Which outputs matter, in what shape they come, and what is counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from test_symmetry_discovery import Net, orders
from torch import nn

from workbench.symmetry import discover_symmetry
from workbench.symmetry.entries import UNUSED


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
    def forward(net, x):
        hidden = net.first(x).relu()
        return Plain(net.second(hidden), {"hidden": [hidden]})

    net, inputs = Net(forward, first=nn.Linear(5, 6), second=nn.Linear(6, 3)), (torch.randn(2, 5),)
    assert discover_symmetry(net, inputs).log10_order() == 0  # the hidden units are an output too
    assert discover_symmetry(net, inputs, outputs=["values"]).groups["first"].size == 6
