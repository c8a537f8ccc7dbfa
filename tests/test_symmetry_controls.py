"""Negative controls: elements that look like symmetries and are none. The check must reject each, and pass the discovered group."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_symmetry_structures import RMS, DecoderBlock, Net, attended, heads_of, swiglu
from torch import nn

from workbench.symmetry import discover_symmetry
from workbench.symmetry.group import build
from workbench.symmetry.layout import Layout, Leaf, Product

WORDS, ROW, IMAGES = torch.randn(2, 5, 5), torch.randn(2, 5), torch.randn(2, 3, 8, 8)


def block() -> nn.Module:
    return Net(lambda net, x: net.head(net.block(net.stem(x))), stem=nn.Linear(5, 6), block=DecoderBlock(6), head=nn.Linear(6, 3))


def key_value_heads_only() -> tuple:
    """Four query heads on two key/value heads: query heads permuted as if each had a key/value head of its own."""
    heads: Layout = Product((Leaf("head", 4), Leaf(None, 4)))
    return block(), WORDS, {"block.q.weight": (heads, None), "block.o.weight": (None, heads)}, {"head": {"size": 4}}


def inside_rotary_pairs() -> tuple:
    """Query and key rows permuted inside each head, where positions rotate pairs of them."""
    q, k = (Product((Leaf(None, heads), Leaf("inside", 4))) for heads in (4, 2))
    return block(), WORDS, {"block.q.weight": (q, None), "block.k.weight": (k, None)}, {"inside": {"size": 4}}


def across_norm_groups() -> tuple:
    """All eight channels permuted under GroupNorm of two groups."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    c = Leaf("channel", 8)
    moved = {"0.weight": (c, None, None, None), "0.bias": (c,), "1.weight": (c,), "1.bias": (c,), "3.weight": (None, c, None, None)}
    return model, IMAGES, moved, {"channel": {"size": 8}}


def across_grouped_convolution() -> tuple:
    """All eight channels that a convolution of two groups reads."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 2, 1))
    c = Leaf("channel", 8)
    return model, IMAGES, {"0.weight": (c, None, None, None), "0.bias": (c,)}, {"channel": {"size": 8}}


def one_half_of_a_gated_layer() -> tuple:
    """The gate's rows and the columns that read it, and not the rows of the value beside it."""
    model = Net(swiglu, gate=nn.Linear(5, 7), up=nn.Linear(5, 7), down=nn.Linear(7, 3))
    u = Leaf("unit", 7)
    return model, ROW, {"gate.weight": (u, None), "gate.bias": (u,), "down.weight": (None, u)}, {"unit": {"size": 7}}


def normed_attention(net, x):
    x = net.stem(x)
    q, k = net.norm(heads_of(net.q(x), 2)), net.norm(heads_of(net.k(x), 2))
    return net.head(x + net.o(attended(q, k, heads_of(net.v(x), 2))))


def a_norm_shared_by_heads() -> tuple:
    """Query and key rows permuted in each head by itself, where one norm gain serves all heads."""
    model = Net(
        normed_attention, stem=nn.Linear(5, 8), norm=RMS(4), q=nn.Linear(8, 8), k=nn.Linear(8, 8), v=nn.Linear(8, 8),
        o=nn.Linear(8, 8), head=nn.Linear(8, 3),
    )  # fmt: skip
    rows = Product((Leaf("=head", 2), Leaf("inside", 4)))
    moved = {f"{name}.{kind}": (rows, None)[: 2 - (kind == "bias")] for name in "qk" for kind in ("weight", "bias")}
    return model, WORDS, moved, {"inside": {"size": 4, "over": ("=head",), "over_sizes": (2,)}}


WRONG = [
    key_value_heads_only,
    inside_rotary_pairs,
    across_norm_groups,
    across_grouped_convolution,
    one_half_of_a_gated_layer,
    a_norm_shared_by_heads,
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.__name__)
def test_the_check_rejects_what_only_looks_like_a_symmetry(case):
    torch.manual_seed(0)
    model, x, moved, factors = case()
    right = discover_symmetry(model, (x,))
    assert right.check(model, (x,)).passed
    tensors = {}
    for name, entry in right.tensors.items():
        layouts = moved.get(name, (None,) * len(entry.shape))
        fixed = zip(layouts, entry.shape, strict=True)
        written = tuple(Leaf(None, n) if layout is None else layout for layout, n in fixed)
        tensors[name] = replace(entry, layouts=written, role="moved")
    verdict = build(tensors, factors, aliases=right.aliases).check(model, (x,))
    assert not verdict.passed
    assert verdict.max_relative_error > 1e-7


def test_rotary_positions_at_one_position_look_uniform_and_a_second_length_tells():
    """At position 0 the rotation is the identity. A group found there alone would be too large: the proof drops what is wrong."""
    model = block()
    one, two = (discover_symmetry(model, (torch.randn(2, length, 5),)) for length in (1, 2))
    assert two.proof.passed
    assert not any("defect" in note for note in two.notes)
    assert any("defect" in note for note in one.notes)
    assert one.log10_order() <= two.log10_order() + 1e-9
    assert one.check(model, (torch.randn(2, 7, 5),)).passed


def window_attention(net, x):
    """Heads with a table of biases, one row for each relative position and one column for each head."""
    x = net.stem(x)
    q, k, v = (heads_of(part, 2) for part in net.qkv(x).chunk(3, -1))
    place = torch.arange(4)
    bias = net.table[(place[:, None] - place[None] + 3)].permute(2, 0, 1)
    y = ((q @ k.mT / 2 + bias).softmax(-1) @ v).transpose(1, 2).flatten(2)
    return net.head(x + net.o(y))


def test_a_table_of_position_biases_moves_with_the_heads():
    net = Net(window_attention, stem=nn.Linear(5, 8), qkv=nn.Linear(8, 24), o=nn.Linear(8, 8), head=nn.Linear(8, 3))
    net.table = nn.Parameter(torch.randn(7, 2))
    found = discover_symmetry(net, (torch.randn(2, 4, 5),))
    head = next(name for name, group in found.groups.items() if group.size == 2)
    assert ("table", 1) in {(m.tensor, m.axis) for m in found.groups[head].members}
    assert found.proof.passed


def next_block(net, x):
    """ConvNeXt's block, with layer scales in both shapes that are met."""
    y = net.depthwise(net.stem(x))
    y = net.norm(y.permute(0, 2, 3, 1))
    y = (net.down(F.gelu(net.up(y))) * net.gamma).permute(0, 3, 1, 2)
    return net.head((net.stem(x) + y * net.delta).mean((2, 3)))


def test_bare_parameters_are_placed_by_their_use():
    net = Net(
        next_block, stem=nn.Conv2d(3, 6, 1), depthwise=nn.Conv2d(6, 6, 3, padding=1, groups=6), norm=nn.LayerNorm(6),
        up=nn.Linear(6, 7), down=nn.Linear(7, 6), head=nn.Linear(6, 2),
    )  # fmt: skip
    net.gamma, net.delta = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6, 1, 1))
    found = discover_symmetry(net, (torch.randn(2, 3, 6, 6),))
    stream = next(group for group in found.groups.values() if group.size == 6)
    assert {("gamma", 0), ("delta", 0)} <= {(m.tensor, m.axis) for m in stream.members}


def test_positions_and_channels_of_one_size_are_not_confused():
    """A position table of as many rows as columns: only the columns are channels."""
    net = Net(lambda m, x: m.head((m.stem(x) + m.position).relu().mean(1)), stem=nn.Linear(5, 6), head=nn.Linear(6, 2))
    net.position = nn.Parameter(torch.randn(1, 6, 6))
    found = discover_symmetry(net, (torch.randn(2, 6, 5),))
    (stream,) = found.groups.values()
    assert [m.axis for m in stream.members if m.tensor == "position"] == [2]
