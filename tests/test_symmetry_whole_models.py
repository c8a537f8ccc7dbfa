"""Whole small models of six kinds: the discovered order equals a closed form worked out by hand (``f(n)`` is n!).

The last column of every case names tensors that may not stay where they are while the rest moves.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.symmetry import Symmetry, discover_symmetry
from workbench.symmetry.entries import FIXED
from workbench.symmetry.layout import Leaf

f = math.factorial


def order(symmetry: Symmetry) -> int:
    """|G| = Π_f (n_f!)^copies, exactly."""
    return math.prod(f(group.size) ** group.copies for group in symmetry.groups.values())


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Rotary(nn.Module):
    """x ⊙ cos + rotate_half(x) ⊙ sin over the last axis of (batch, heads, time, d); pairs are (i, i + d/2)."""

    def __init__(self, d):
        super().__init__()
        self.register_buffer("frequency", 100.0 ** -(torch.arange(0, d, 2) / d), persistent=False)

    def forward(self, x):
        angle = torch.arange(x.shape[-2])[:, None] * self.frequency
        cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin


class DecoderBlock(nn.Module):
    """Causal attention of 4 query heads over 2 key/value heads of 4 units with rotary positions, then SwiGLU of 6 units."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2, self.rotary = RMSNorm(width), RMSNorm(width), Rotary(4)
        self.q, self.out = nn.Linear(width, 16, bias=False), nn.Linear(16, width, bias=False)
        self.k, self.v = nn.Linear(width, 8, bias=False), nn.Linear(width, 8, bias=False)
        self.gate, self.up = nn.Linear(width, 6, bias=False), nn.Linear(width, 6, bias=False)
        self.down = nn.Linear(6, width, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (z.unflatten(-1, (-1, 4)).transpose(1, 2) for z in (self.q(y), self.k(y), self.v(y)))
        k, v = self.rotary(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        y = F.scaled_dot_product_attention(self.rotary(q), k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(11, 8), RMSNorm(8), nn.Linear(8, 11, bias=False)
        self.blocks = nn.Sequential(DecoderBlock(8), DecoderBlock(8))

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens))))


class VisionBlock(nn.Module):
    """Two heads of 4 units from one packed projection, layer scale, and a hidden layer of 12."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 24), nn.Linear(8, width)
        self.up, self.down = nn.Linear(width, 12), nn.Linear(12, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.gamma * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, 8))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.cls, self.position = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.blocks = nn.Sequential(VisionBlock(8), VisionBlock(8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


def convolution(c_in, c_out, k=1, **options):
    return nn.Sequential(nn.Conv2d(c_in, c_out, k, padding=k // 2, bias=False, **options), nn.BatchNorm2d(c_out))


class GroupedBlock(nn.Module):
    def __init__(self, c_in, inner, groups, c_out, stride=1):
        super().__init__()
        self.a, self.b = convolution(c_in, inner), convolution(inner, inner, 3, groups=groups, stride=stride)
        self.c = convolution(inner, c_out)
        self.shortcut = nn.Identity() if c_in == c_out else convolution(c_in, c_out, stride=stride)

    def forward(self, x):
        return torch.relu(self.c(torch.relu(self.b(torch.relu(self.a(x))))) + self.shortcut(x))


class GroupedResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = convolution(3, 8, 3)
        self.one, self.two = GroupedBlock(8, 8, 2, 8), GroupedBlock(8, 12, 3, 10, stride=2)
        self.head = nn.Linear(10, 2)

    def forward(self, x):
        return self.head(self.two(self.one(torch.relu(self.stem(x)))).mean((2, 3)))


class UNet(nn.Module):
    """Down twice, up once by a transposed convolution and once by interpolation; both skips are concatenated."""

    def __init__(self):
        super().__init__()
        self.down1a, self.down1b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3, padding=1)
        self.down2, self.middle = nn.Conv2d(5, 6, 3, padding=1), nn.Conv2d(6, 7, 3, padding=1)
        self.rise = nn.ConvTranspose2d(7, 3, 2, stride=2)
        self.up2, self.up1 = nn.Conv2d(9, 4, 3, padding=1), nn.Conv2d(9, 6, 3, padding=1)
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x):
        one = torch.relu(self.down1b(torch.relu(self.down1a(x))))
        two = torch.relu(self.down2(F.max_pool2d(one, 2)))
        x = self.rise(torch.relu(self.middle(F.max_pool2d(two, 2))))
        x = torch.relu(self.up2(torch.cat([two, x], 1)))
        x = F.interpolate(x, scale_factor=2, mode="bilinear")
        return self.head(torch.relu(self.up1(torch.cat([one, x], 1))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


class StateSpaceBlock(nn.Module):
    """6 channels, a state of 3 for each, steps through a bottleneck of 2; the scan is written out (Mamba, arXiv 2312.00752)."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.read = RMSNorm(width), nn.Linear(width, 12, bias=False)
        self.conv = nn.Conv1d(6, 6, 3, groups=6, padding=2)
        self.select, self.step = nn.Linear(6, 2 + 3 + 3, bias=False), nn.Linear(2, 6)
        self.decay, self.skip = nn.Parameter(torch.randn(6, 3)), nn.Parameter(torch.randn(6))
        self.write = nn.Linear(6, width, bias=False)

    def forward(self, x):
        u, z = self.read(self.norm(x)).chunk(2, -1)
        time = u.shape[1]
        u = F.silu(self.conv(u.transpose(1, 2))[..., :time]).transpose(1, 2)
        step, b, c = self.select(u).split([2, 3, 3], -1)
        step = F.softplus(self.step(step))
        state, outputs = torch.zeros(len(u), 6, 3, dtype=u.dtype), []
        for t in range(time):
            state = state * torch.exp(-step[:, t, :, None] * self.decay.exp())
            state = state + (step[:, t] * u[:, t])[:, :, None] * b[:, t, None]
            outputs.append((state * c[:, t, None]).sum(-1) + self.skip * u[:, t])
        return x + self.write(torch.stack(outputs, 1) * F.silu(z))


class StateSpaceModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(11, 8), RMSNorm(8), nn.Linear(8, 11, bias=False)
        self.blocks = nn.Sequential(StateSpaceBlock(8), StateSpaceBlock(8))

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def tokens():
    return torch.randint(11, (2, 4))


# name: (model, inputs, closed form, matrices that may not be left behind)
MODELS = {
    # The stream has one order of 8 through both blocks. In a block: 2 key/value heads change places with their query heads; the 2
    # query heads of each; 4 value units per key/value head; 6 hidden units. Two rotation speeds and the order inside a pair tell
    # all 4 query/key units apart, so nothing moves there.
    "grouped-query rotary decoder": (
        Decoder,
        tokens,
        f(8) * (f(2) * f(2) ** 2 * f(4) ** 2 * f(6)) ** 2,
        ("embed.weight", "blocks.0.k.weight", "blocks.1.q.weight", "blocks.1.up.weight", "head.weight"),
    ),
    # The stream has one order of 8: patches, class token, positions. In a block: 2 heads, 4 query/key and 4 value units in each,
    # 12 hidden units.
    "vision transformer, packed": (
        VisionTransformer,
        lambda: torch.randn(2, 3, 8, 8),
        f(8) * (f(2) * f(4) ** 2 * f(4) ** 2 * f(12)) ** 2,
        ("cls", "position", "blocks.0.qkv.weight", "blocks.1.out.weight"),
    ),
    # A stream of 8 through the stem and the first block, one of 10 after the projection. Inside the blocks 2 groups of 4 and 3
    # groups of 4 change places; 4 channels in and 4 out in each group are free.
    "grouped residual net": (
        GroupedResNet,
        lambda: torch.randn(2, 3, 8, 8),
        f(8) * (f(2) * f(4) ** 2 * f(4) ** 2) * (f(3) * f(4) ** 3 * f(4) ** 3) * f(10),
        ("one.b.0.weight", "two.b.0.weight", "two.shortcut.0.weight"),
    ),
    # Every convolution has an order of its own; a concatenation sets two side by side. In the order of the forward.
    "UNet": (
        UNet,
        lambda: torch.randn(2, 3, 8, 8),
        f(4) * f(5) * f(6) * f(7) * f(3) * f(4) * f(6),
        ("down1b.weight", "rise.weight", "up2.weight", "up1.weight"),
    ),
    # Each of 2 layers has a state of 4 in each of 2 directions. The directions read time in opposite order and cannot be exchanged.
    "bidirectional LSTM": (
        Recurrent,
        lambda: torch.randn(2, 4, 5),
        f(4) ** 4,
        ("rnn.weight_hh_l0", "rnn.weight_ih_l1", "rnn.weight_ih_l1_reverse", "head.weight"),
    ),
    # The stream (8). In a block: 6 channels, in one order in both halves of what is read; 3 places of the state, the same for all
    # channels because b and c are; 2 units between select and step, with nothing in between.
    "state-space model": (
        StateSpaceModel,
        tokens,
        f(8) * (f(6) * f(3) * f(2)) ** 2,
        ("blocks.0.conv.weight", "blocks.0.select.weight", "blocks.1.decay", "blocks.1.step.weight"),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_order_equals_the_closed_form(name):
    factory, inputs, theory, kept = MODELS[name]
    torch.manual_seed(0)
    model, x = factory(), inputs()
    symmetry = discover_symmetry(model, (x,))
    print(f"\n{name:<32} order {order(symmetry)}, theory {theory}")
    assert order(symmetry) == theory
    assert symmetry.proof.passed
    assert not symmetry.unknown_ops
    assert not symmetry.notes
    assert symmetry.check(model, (x,)).passed
    for tensor in kept:
        entry = symmetry.tensors[tensor]
        still = replace(entry, layouts=tuple(Leaf(None, n) for n in entry.shape), role=FIXED)
        verdict = replace(symmetry, tensors={**symmetry.tensors, tensor: still}).check(model, (x,))
        assert not verdict.passed, tensor
        assert verdict.max_relative_error > 1e-7, tensor
