"""Several things laid out in one axis, parts picked out by place, and positions that only a second length tells apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_symmetry_discovery import Net, orders
from torch import nn

from workbench.symmetry import discover_symmetry


def heads_of(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def attended(q, k, v):
    return ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def per_head_fused_attention(net, x):
    """One projection laid out head by head, (heads, 3, inside)."""
    x = net.stem(x)
    q, k, v = net.qkv(x).unflatten(-1, (2, 3, 4)).permute(3, 0, 2, 1, 4)
    return net.head(x + net.o(attended(q, k, v)))


def packed_swiglu(net, x):
    gate, up = net.both(x).chunk(2, -1)
    return net.down(F.silu(gate) * up)


def picked_by_place(net, x):
    x = net.stem(x)
    heads = net.qkv(x).unflatten(-1, (6, 4))
    q, k, v = (part.transpose(1, 2) for part in (heads[..., :-2, :], heads[..., [-2], :], heads[..., [-1], :]))
    return net.head(x + net.o(attended(q, k, v)))


WORDS, ROW = (2, 5, 5), (2, 5)

# name: (model, shape of the input, log10 of the order by hand)
CASES = {
    # stream 8; 2 heads; 4 inside query/key and 4 inside value/output, for each head
    "attention, fused head by head": (
        Net(per_head_fused_attention, stem=nn.Linear(5, 8), qkv=nn.Linear(8, 24), o=nn.Linear(8, 8), head=nn.Linear(8, 3)),
        WORDS, orders(8, 2, 4, 4, 4, 4),
    ),
    # Falcon's layout: query heads, then the key's and the value's, picked out by a list of one place: S_4 of query heads, 4 inside
    # query/key for all of them (the shared key ties them), 4 inside value/output
    "one key/value head, picked by place": (
        Net(picked_by_place, stem=nn.Linear(5, 8), qkv=nn.Linear(8, 24), o=nn.Linear(16, 8), head=nn.Linear(8, 3)),
        WORDS, orders(8, 4, 4, 4),
    ),
    # one permutation for gate, value and reader
    "gated MLP, packed": (Net(packed_swiglu, both=nn.Linear(5, 14), down=nn.Linear(7, 3)), ROW, orders(7)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_group_is_the_one_worked_out_by_hand(name):
    model, shape, theory = CASES[name]
    found = discover_symmetry(model, (torch.randn(shape),))
    assert found.log10_order() == pytest.approx(theory, abs=1e-9)
    assert found.proof.passed
    assert not found.unknown_ops
    assert not any("defect" in note for note in found.notes)


def rotate(x):
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(half).repeat(2)
    return x * angle.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angle.sin()


def rotary(net, x):
    x = net.stem(x)
    q, k, v = (heads_of(layer(x), 2) for layer in (net.q, net.k, net.v))
    return net.head(x + net.o(attended(rotate(q), rotate(k), v)))


def test_rotary_positions_at_one_position_look_uniform_and_a_second_length_tells():
    """At position 0 the rotation is the identity. A group found there alone would be too large: the proof drops what is wrong."""
    projections = {name: nn.Linear(6, 8) for name in "qkv"}
    model = Net(rotary, stem=nn.Linear(5, 6), **projections, o=nn.Linear(8, 6), head=nn.Linear(6, 3))
    one, two = (discover_symmetry(model, (torch.randn(2, length, 5),)) for length in (1, 2))
    assert two.proof.passed
    assert not any("defect" in note for note in two.notes)
    assert any("defect" in note for note in one.notes)
    assert one.log10_order() <= two.log10_order() + 1e-9
    assert one.check(model, (torch.randn(2, 7, 5),)).passed
