"""The order of the discovered group against closed forms worked out by hand, structure by structure (run with -s for the table).

Factors are symmetric groups, so an order is a product of factorials; ``f(n)`` is n!. Where heads, groups or experts change places
as blocks, S_n inside each of g blocks gives f(g) · f(n)^g (a wreath product).
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.symmetry import Symmetry, discover_symmetry

f = math.factorial
IMAGE, ROW, SEQUENCE = (2, 3, 8, 8), (2, 5), (2, 7, 5)


class Net(nn.Module):
    def __init__(self, forward, **modules):
        super().__init__()
        self.run = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args):
        return self.run(self, *args)


class RMSNorm(nn.Module):
    """Written out, as decoders have it: no fused operation to recognise."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def random(*shape):
    return lambda: torch.randn(*shape)


# -- forwards


def residual_convolutions(m, x):
    x = torch.relu(m.norm(m.stem(x)))
    x = torch.relu(x + m.norm2(m.conv2(torch.relu(m.norm1(m.conv1(x))))))
    return m.head(x.mean((2, 3)))


def residual(m, x):
    x = m.stem(x)
    x = x + m.b(torch.relu(m.a(m.norm(x))))
    return m.head(x)


def dense(m, x):
    x = m.a(x).relu()
    return m.head(m.bn(torch.cat([x, m.b(x)], 1)).relu().mean((2, 3)))


def bottleneck(m, x):
    """torchvision's shape: conv1–3, bn1–3 and a projection shortcut called downsample.0/.1."""
    x = m.stem(x)
    y = F.relu(m.bn1(m.conv1(x)))
    y = F.relu(m.bn2(m.conv2(y)))
    x = F.relu(m.bn3(m.conv3(y)) + m.downsample(x))
    return m.fc(x.mean((2, 3)))


def squeeze(m, x):
    x = m.act(m.bn(m.conv(x)))
    gate = torch.sigmoid(m.up(F.relu(m.down(x.mean((2, 3))))))
    return m.head((x * gate[:, :, None, None]).mean((2, 3)))


def shuffled(m, x):
    x = torch.relu(m.first(torch.relu(m.stem(x))))
    n, c, h, w = x.shape
    x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
    return m.head(torch.relu(m.second(x)))


def twice(m, x):
    return m.head(torch.relu(m.a(torch.relu(m.a(m.stem(x))))))


def two_heads(m, x):
    h = torch.relu(m.stem(x))
    return {"a": m.a(h), "b": m.b(h)}


def attention(m, x):
    x = m.stem(x)
    return m.head(m.mha(x, x, x, need_weights=False)[0])


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def functional(m, x):
    x = m.stem(x)
    q, k, v = (heads(y, 2) for y in (m.q(x), m.k(x), m.v(x)))
    weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
    return m.head(x + m.out((weights @ v).transpose(1, 2).flatten(2)))


def chunked(m, x):
    x = m.stem(x)
    q, k, v = (heads(y, 2) for y in m.qkv(x).chunk(3, -1))
    return m.head(x + m.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))


def packed(m, x):
    """timm's way: one projection viewed as (3, heads, inside), permuted and unbound."""
    x = m.stem(x)
    n, t, c = x.shape
    q, k, v = m.qkv(x).reshape(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)
    return m.head(x + m.out(y))


def grouped_queries(m, x):
    """Three key/value heads, two query heads to each."""
    x = m.stem(x)
    n, t, _ = x.shape
    q = m.q(x).view(n, t, 3, 2, 4).permute(0, 2, 3, 1, 4)
    k, v = (y.view(n, t, 3, 4).permute(0, 2, 1, 3) for y in (m.k(x), m.v(x)))
    weights = torch.einsum("bgrtd,bgsd->bgrts", q, k).softmax(-1)
    y = torch.einsum("bgrts,bgsd->bgrtd", weights, v).permute(0, 3, 1, 2, 4).reshape(n, t, 24)
    return m.head(x + m.out(y))


def repeated_keys(m, x):
    """The same by repeating every key/value head."""
    x = m.stem(x)
    q, k, v = heads(m.q(x), 6), heads(m.k(x), 3), heads(m.v(x), 3)
    y = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
    return m.head(x + m.out(y.transpose(1, 2).flatten(2)))


def gated(m, x):
    x = m.stem(x)
    return m.down(F.silu(m.gate(x)) * m.up(x))


def tied_language_model(m, x):
    x = m.embed(x) + m.position.weight
    x = x + m.down(F.gelu(m.up(m.norm(x))))
    return x @ m.embed.weight.t()


def mixture(m, x):
    x = m.stem(x)
    p = m.router(x).softmax(-1)
    return m.head(x + sum(p[:, e, None] * expert(x) for e, expert in enumerate(m.experts)))


def with_queries(forward):
    return lambda: Net(
        forward,
        stem=nn.Linear(5, 8),
        q=nn.Linear(8, 24),
        k=nn.Linear(8, 12),
        v=nn.Linear(8, 12),
        out=nn.Linear(24, 8),
        head=nn.Linear(8, 3),
    )


# name: (a factory, its inputs, the closed form)
TABLE = {
    # Every hidden layer may be put in any order; the input's and the output's places are given.
    "MLP": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3)),
        random(*ROW),
        f(7) * f(6),
    ),
    # Channels move with the norm's weights and statistics; pooling does not see them.
    "Conv-BN-pool": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
        ),
        random(*IMAGE),
        f(8),
    ),
    # The linear layer reads (channel, place): channels move in stretches of 16, places do not. Then one hidden layer of 5.
    "conv, flatten 4x4, linear": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5), nn.ReLU(), nn.Linear(5, 2)),
        random(*IMAGE),
        f(6) * f(5),
    ),
    # Stem and the block's output are added, so they share one order; inside the block 5 channels of its own.
    "residual block": (
        lambda: Net(
            residual_convolutions,
            stem=nn.Conv2d(3, 6, 3),
            norm=nn.BatchNorm2d(6),
            conv1=nn.Conv2d(6, 5, 3, padding=1),
            norm1=nn.BatchNorm2d(5),
            conv2=nn.Conv2d(5, 6, 3, padding=1),
            norm2=nn.BatchNorm2d(6),
            head=nn.Linear(6, 2),
        ),
        random(*IMAGE),
        f(6) * f(5),
    ),
    # The consumer of a concatenation sees the orders side by side; the parts read different inputs and cannot mix.
    "DenseNet concat": (
        lambda: Net(
            dense, a=nn.Conv2d(3, 4, 3, padding=1), b=nn.Conv2d(4, 6, 3, padding=1), bn=nn.BatchNorm2d(10), head=nn.Linear(10, 2)
        ),
        random(*IMAGE),
        f(4) * f(6),
    ),
    # Two groups change places as a whole, the same on both sides; 4 inputs and 4 outputs in each are free.
    "grouped conv g=2": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 2, 1)),
        random(*IMAGE),
        f(2) * f(4) ** 2 * f(4) ** 2,
    ),
    # Eight groups of one channel: S_8 passes straight through.
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 2, 1)),
        random(*IMAGE),
        f(8),
    ),
    # Between the convolutions a channel lies in one of 2 × 2 cells (group written by, group read by) of 2 channels:
    # f(2) · f(2) for the two partitions and f(2)^4 inside the cells; outside, 4 channels per group on each side.
    "channel shuffle": (
        lambda: Net(
            shuffled,
            stem=nn.Conv2d(3, 8, 1),
            first=nn.Conv2d(8, 8, 3, groups=2),
            second=nn.Conv2d(8, 8, 3, groups=2),
            head=nn.Conv2d(8, 2, 1),
        ),
        random(*IMAGE),
        f(4) ** 2 * (f(2) * f(2) * f(2) ** 4) * f(4) ** 2,
    ),
    # Each channel after the shuffle is made of 4 before it, whose order is their place in the picture.
    "pixel shuffle": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.ReLU(), nn.PixelShuffle(2), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Conv2d(5, 2, 1)
        ),
        random(*IMAGE),
        f(4) * f(5),
    ),
    # Two heads; 4 query/key and 4 value units in each; what goes in (8) and what comes out (8) are not added, so two orders.
    "nn.MultiheadAttention": (
        lambda: Net(attention, stem=nn.Linear(5, 8), mha=nn.MultiheadAttention(8, 2, batch_first=True), head=nn.Linear(8, 3)),
        random(*SEQUENCE),
        f(8) * f(2) * f(4) ** 2 * f(4) ** 2 * f(8),
    ),
    # The same heads; with a residual sum one order of the stream.
    "functional MHA": (
        lambda: Net(
            functional,
            stem=nn.Linear(5, 8),
            q=nn.Linear(8, 8),
            k=nn.Linear(8, 8),
            v=nn.Linear(8, 8),
            out=nn.Linear(8, 8),
            head=nn.Linear(8, 3),
        ),
        random(*SEQUENCE),
        f(8) * f(2) * f(4) ** 2 * f(4) ** 2,
    ),
    # Three key/value heads change places with their query heads; the 2 query heads of each among themselves; one order of
    # 4 query/key units and one of 4 value units per key/value head, shared by its query heads.
    "functional GQA": (with_queries(repeated_keys), random(*SEQUENCE), f(8) * f(3) * f(2) ** 3 * f(4) ** 3 * f(4) ** 3),
    # One matrix holds queries, keys and values; the group is that of three.
    "fused QKV, chunk": (
        lambda: Net(chunked, stem=nn.Linear(5, 8), qkv=nn.Linear(8, 24), out=nn.Linear(8, 8), head=nn.Linear(8, 3)),
        random(*SEQUENCE),
        f(8) * f(2) * f(4) ** 2 * f(4) ** 2,
    ),
    # Gate and up are multiplied unit by unit: one order for both and for what down reads.
    "SwiGLU": (
        lambda: Net(gated, stem=nn.Linear(5, 6), gate=nn.Linear(6, 7), up=nn.Linear(6, 7), down=nn.Linear(7, 3)),
        random(*ROW),
        f(6) * f(7),
    ),
    # The mean of squares does not see the order of the stream; the norm's weight moves along.
    "RMSNorm residual": (
        lambda: Net(residual, stem=nn.Linear(5, 8), norm=RMSNorm(8), a=nn.Linear(8, 6), b=nn.Linear(6, 8), head=nn.Linear(8, 3)),
        random(*ROW),
        f(8) * f(6),
    ),
    "LayerNorm residual": (
        lambda: Net(
            residual, stem=nn.Linear(5, 8), norm=nn.LayerNorm(8), a=nn.Linear(8, 6), b=nn.Linear(6, 8), head=nn.Linear(8, 3)
        ),
        random(*ROW),
        f(8) * f(6),
    ),
    # The table's columns are the stream (8), in and out; its rows are words. 12 hidden units.
    "tied embedding": (
        lambda: Net(
            tied_language_model,
            embed=nn.Embedding(11, 8),
            position=nn.Embedding(7, 8),
            norm=nn.LayerNorm(8),
            up=nn.Linear(8, 12),
            down=nn.Linear(12, 8),
        ),
        lambda: torch.randint(11, (2, 7)),
        f(8) * f(12),
    ),
    # Rows and columns of the same matrix: one order.
    "layer reused twice": (
        lambda: Net(twice, stem=nn.Linear(5, 6), a=nn.Linear(6, 6), head=nn.Linear(6, 2)),
        random(*ROW),
        f(6),
    ),
    # Three experts change places with the router's rows; each has 4 hidden units of its own; the stream has 6.
    "MoE, experts as modules": (
        lambda: Net(
            mixture,
            stem=nn.Linear(5, 6),
            router=nn.Linear(6, 3),
            experts=nn.ModuleList(nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 6)) for _ in range(3)),
            head=nn.Linear(6, 2),
        ),
        random(*ROW),
        f(6) * f(3) * f(4) ** 3,
    ),
    # Statistics are taken over each half: halves change places, 4 channels in each.
    "GroupNorm g=2": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 2, 1)),
        random(*IMAGE),
        f(2) * f(4) ** 2,
    ),
}

FURTHER = {
    # Rows of the linear layer are (channel, place): they move in stretches of 16. Transposed weights have their axes swapped.
    "unflatten, transposed conv": (
        lambda: nn.Sequential(
            nn.Linear(5, 64), nn.Unflatten(1, (4, 4, 4)), nn.ConvTranspose2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 3)
        ),
        random(*ROW),
        f(4) * f(6),
    ),
    # The projection starts a stream of 8; the stem's 4 are read by two layers; 3 and 5 inside.
    "bottleneck with projection": (
        lambda: Net(
            bottleneck,
            stem=nn.Conv2d(3, 4, 3, padding=1),
            conv1=nn.Conv2d(4, 3, 1, bias=False),
            bn1=nn.BatchNorm2d(3),
            conv2=nn.Conv2d(3, 5, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(5),
            conv3=nn.Conv2d(5, 8, 1, bias=False),
            bn3=nn.BatchNorm2d(8),
            downsample=nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8)),
            fc=nn.Linear(8, 2),
        ),
        random(*IMAGE),
        f(4) * f(3) * f(5) * f(8),
    ),
    # The gate multiplies the channels it was computed from: 6 channels, 4 units in between.
    "BN without affine, PReLU per channel, squeeze-excite": (
        lambda: Net(
            squeeze,
            conv=nn.Conv2d(3, 6, 3),
            bn=nn.BatchNorm2d(6, affine=False),
            act=nn.PReLU(6),
            down=nn.Linear(6, 4),
            up=nn.Linear(4, 6),
            head=nn.Linear(6, 2),
        ),
        random(*IMAGE),
        f(6) * f(4),
    ),
    "packed query, key, value": (
        lambda: Net(packed, stem=nn.Linear(5, 8), qkv=nn.Linear(8, 24), out=nn.Linear(8, 8), head=nn.Linear(8, 3)),
        random(*SEQUENCE),
        f(8) * f(2) * f(4) ** 2 * f(4) ** 2,
    ),
    "GQA by einsum": (with_queries(grouped_queries), random(*SEQUENCE), f(8) * f(3) * f(2) ** 3 * f(4) ** 3 * f(4) ** 3),
    # Four gates share the order of the state, which is read back.
    "recurrence": (
        lambda: Net(lambda m, x: m.head(m.rnn(x)[0]), rnn=nn.LSTM(5, 6, batch_first=True), head=nn.Linear(6, 2)),
        random(*SEQUENCE),
        f(6),
    ),
    # A view that is undone leaves no trace.
    "view and view back": (
        lambda: nn.Sequential(nn.Linear(5, 12), nn.Unflatten(1, (3, 4)), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)),
        random(*ROW),
        f(12),
    ),
    "two outputs in a dict": (
        lambda: Net(two_heads, stem=nn.Linear(5, 6), a=nn.Linear(6, 2), b=nn.Linear(6, 3)),
        random(*ROW),
        f(6),
    ),
}

STRUCTURES = TABLE | FURTHER
# What the function does not read: softmax subtracts what a key's bias adds to every score of a query.
DEAD = {
    "functional MHA": {"k.bias"},
    "functional GQA": {"k.bias"},
    "GQA by einsum": {"k.bias"},
}


def order(symmetry: Symmetry) -> int:
    """|G| = Π_f (n_f!)^copies, exactly."""
    return math.prod(f(group.size) ** group.copies for group in symmetry.groups.values())


@pytest.mark.parametrize("name", STRUCTURES)
def test_order_equals_the_closed_form(name):
    factory, inputs, theory = STRUCTURES[name]
    torch.manual_seed(0)
    model, x = factory(), inputs()
    symmetry = discover_symmetry(model, (x,))
    print(f"\n{name:<54} order {order(symmetry)}, theory {theory}")
    assert order(symmetry) == theory
    assert symmetry.log10_order() == pytest.approx(math.log10(theory), abs=1e-9)
    assert symmetry.proof.passed
    assert len(symmetry.proof.shapes) == 2
    assert not symmetry.unknown_ops
    assert not symmetry.notes  # no defect, nothing dropped
    assert {tensor for _, tensor in symmetry.proof.dead} == DEAD.get(name, set())
    for group in symmetry.groups:  # every factor is valid on its own
        element = symmetry.sample(7).restrict([group, *(o for o, g in symmetry.groups.items() if group in g.over)])
        before, after = outputs_before_and_after(model, symmetry, element, x)
        assert float((before - after).abs().max()) <= 1e-10 * max(1.0, float(before.abs().max()))


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_weight_left_behind_changes_the_function(name):
    """The negative control of the test above: what it measures sees every moved matrix."""
    factory, inputs, _ = STRUCTURES[name]
    torch.manual_seed(0)
    model, x = factory(), inputs()
    symmetry = discover_symmetry(model, (x,))
    state = model.state_dict()
    moved = symmetry.apply(element := symmetry.sample(7), state)
    changed = [n for n, entry in symmetry.tensors.items() if len(entry.shape) > 1 and not torch.equal(moved[n], state[n])]
    assert changed
    for tensor in changed:
        before, after = outputs_before_and_after(model, symmetry, element, x, left_behind=tensor)
        assert float((before - after).abs().max()) > 1e-6 * float(before.abs().max()), tensor


def outputs_before_and_after(model, symmetry, element, x, left_behind=None):
    """An independent check: the module itself in float64, on weights and norm statistics drawn anew."""
    generator = torch.Generator().manual_seed(5)
    state = {}
    for key, tensor in model.state_dict().items():
        draw = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) if tensor.is_floating_point() else tensor
        state[key] = draw.abs() + 0.5 if key.endswith("running_var") else draw
    moved = symmetry.apply(element, state)
    if left_behind is not None:
        moved[left_behind] = state[left_behind]
    if x.is_floating_point():
        x = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        before, after = (torch.func.functional_call(model, values, (x,)) for values in (state, moved))
    return tuple(y if torch.is_tensor(y) else torch.cat(list(y.values()), -1) for y in (before, after))
