"""Structures whose group is known: the order found, printed beside the order worked out by hand (``pytest -s``).

Single layers and blocks are in test_symmetry_discovery.py; here are the ways in which channels, heads and gates are laid out in one
axis, and small networks of whole families. lg n! is written L(n).
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.symmetry import discover_symmetry


def L(*sizes: int) -> float:
    return sum(math.lgamma(n + 1) for n in sizes) / math.log(10)


class Net(nn.Module):
    def __init__(self, run, **modules) -> None:
        super().__init__()
        self.run = run
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs):
        return self.run(self, *inputs)


class RMS(nn.Module):
    """Root mean square norm in plain operations, as most language models write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def shuffled(net, x):
    x = net.first(net.stem(x)).relu()
    n, c, h, w = x.shape
    x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
    return net.head(net.second(x).relu()).mean((2, 3))


def heads_of(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def attended(q, k, v):
    return ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def functional_attention(net, x):
    x = net.stem(x)
    return net.head(x + net.o(attended(*(heads_of(layer(x), 2) for layer in (net.q, net.k, net.v)))))


def fused_attention(net, x):
    x = net.stem(x)
    return net.head(x + net.o(attended(*(heads_of(part, 2) for part in net.qkv(x).chunk(3, -1)))))


def per_head_fused_attention(net, x):
    """One projection laid out head by head, (heads, 3, inside)."""
    x = net.stem(x)
    q, k, v = net.qkv(x).unflatten(-1, (2, 3, 4)).permute(3, 0, 2, 1, 4)
    return net.head(x + net.o(attended(q, k, v)))


def picked_by_place(net, x):
    x = net.stem(x)
    heads = net.qkv(x).unflatten(-1, (6, 4))
    q, k, v = (part.transpose(1, 2) for part in (heads[..., :-2, :], heads[..., [-2], :], heads[..., [-1], :]))
    return net.head(x + net.o(attended(q, k, v)))


def swiglu(net, x):
    return net.down(F.silu(net.gate(x)) * net.up(x))


def packed_swiglu(net, x):
    gate, up = net.both(x).chunk(2, -1)
    return net.down(F.silu(gate) * up)


def normed(net, x):
    x = net.stem(x)
    return net.head(net.last(x + net.down(F.gelu(net.up(net.norm(x))))))


def tied(net, ids):
    x = net.embed(ids)
    return net.norm(x + net.down(F.gelu(net.up(net.norm(x))))) @ net.embed.weight.t()


def rotate(x):
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(half).repeat(2)
    return x * angle.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angle.sin()


class DecoderBlock(nn.Module):
    """Pre-norm block: 4 query heads of 4 on 2 key and value heads, rotary positions, causal; gated MLP of 7."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = RMS(width), RMS(width)
        self.q, self.k, self.v = (nn.Linear(width, 4 * heads, bias=False) for heads in (4, 2, 2))
        self.o = nn.Linear(16, width, bias=False)
        self.mlp = Net(swiglu, gate=nn.Linear(width, 7), up=nn.Linear(width, 7), down=nn.Linear(7, width))

    def forward(self, x):
        y = self.first(x)
        q, k, v = (heads_of(layer(y), count) for layer, count in ((self.q, 4), (self.k, 2), (self.v, 2)))
        q, k = rotate(q), rotate(k)
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class Decoder(nn.Module):
    def __init__(self, blocks: int = 2, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.Sequential(*(DecoderBlock(width) for _ in range(blocks)))
        self.norm, self.out = RMS(width), nn.Linear(width, 11, bias=False)

    def forward(self, ids):
        return self.out(self.norm(self.blocks(self.embed(ids))))


class VisionTransformer(nn.Module):
    """Patches by a strided convolution, a class token, learned positions, packed query-key-value, LayerNorm."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, 5, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "a": nn.LayerNorm(width), "qkv": nn.Linear(width, 24), "o": nn.Linear(8, width),
                    "b": nn.LayerNorm(width), "up": nn.Linear(width, 10), "down": nn.Linear(10, width),
                }
            )
            for _ in range(2)
        )  # fmt: skip
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for block in self.blocks:
            q, k, v = block["qkv"](block["a"](x)).reshape(len(x), -1, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            x = x + block["o"](attended(q, k, v))
            x = x + block["down"](F.gelu(block["up"](block["b"](x))))
        return self.head(self.norm(x)[:, 0])


class GroupedResidual(nn.Module):
    """ResNeXt's block: 1×1, grouped 3×3 of 2 groups, 1×1, batch norms, on a stream of 8 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 6, 3, padding=1, groups=2), nn.Conv2d(6, 8, 1)
        self.n1, self.n2, self.n3 = nn.BatchNorm2d(6), nn.BatchNorm2d(6), nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.n2(self.c2(self.n1(self.c1(x)).relu())).relu()
        return (x + self.n3(self.c3(y))).relu()


def unet(net, x):
    one = net.d1(x).relu()
    two = net.d2(F.max_pool2d(one, 2)).relu()
    three = net.d3(F.max_pool2d(two, 2)).relu()
    up = net.u2(torch.cat([two, net.t2(three)], 1)).relu()
    up = net.u1(torch.cat([one, F.interpolate(up, scale_factor=2, mode="bilinear")], 1)).relu()
    return net.head(up)


def mamba(net, ids):
    """A selective state-space block: gate and value from one projection, a causal depthwise convolution, a scan over 3 states."""
    x = net.embed(ids)
    y = net.norm(x)
    value, gate = net.inward(y).chunk(2, -1)
    value = F.silu(net.conv(value.mT)[..., : ids.shape[1]].mT)
    step, b, c = net.project(value).split([2, 3, 3], -1)
    step = F.softplus(net.step(step))
    state = torch.zeros(len(ids), 5, 3)
    out = []
    for t in range(ids.shape[1]):
        state = state * torch.exp(-step[:, t, :, None] * net.decay.exp()) + (step[:, t] * value[:, t])[..., None] * b[:, t, None]
        out.append((state * c[:, t, None]).sum(-1))
    y = (torch.stack(out, 1) + net.skip * value) * F.silu(gate)
    return net.head(x + net.outward(y))


class Mamba(Net):
    def __init__(self) -> None:
        super().__init__(
            mamba, embed=nn.Embedding(11, 6), norm=RMS(6), inward=nn.Linear(6, 10, bias=False),
            conv=nn.Conv1d(5, 5, 3, groups=5, padding=2), project=nn.Linear(5, 8, bias=False), step=nn.Linear(2, 5),
            outward=nn.Linear(5, 6, bias=False), head=nn.Linear(6, 11),
        )  # fmt: skip
        self.decay, self.skip = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(5))


def projections(**more) -> dict[str, nn.Module]:
    return {"stem": nn.Linear(5, 8), "o": nn.Linear(8, 8), "head": nn.Linear(8, 3), **more}


IMAGES, WORDS, ROW, IDS = (2, 3, 8, 8), (2, 5, 5), (2, 5), (2, 5)

# name: (model, shape of the input, order by hand)
CASES = {
    # Two groups before and two after: cells of m = 8 / (2 · 2) = 2 channels, S_m in each of 4 cells, S_2 × S_2 of groups; the
    # stem's outputs: S_4 in each group of the first convolution, with the same S_2; the last outputs: S_4 in each group of the
    # second, with its S_2.
    "channel shuffle between grouped convolutions": (
        Net(shuffled, stem=nn.Conv2d(3, 8, 1), first=nn.Conv2d(8, 8, 3, groups=2), second=nn.Conv2d(8, 8, 3, groups=2),
            head=nn.Conv2d(8, 2, 1)),
        IMAGES, 4 * L(2) + 2 * L(2) + 2 * L(4) + 2 * L(4),
    ),
    # 12 producer channels are 3 consumer channels of a 2 × 2 block each: whole blocks move, nothing inside them
    "pixel shuffle": (
        nn.Sequential(nn.Conv2d(3, 12, 3), nn.PixelShuffle(2), nn.ReLU(), nn.Conv2d(3, 2, 3)), IMAGES, L(3),
    ),
    # stream 8; 2 heads; 4 inside query/key and 4 inside value/output, for each head
    "attention in plain operations": (
        Net(functional_attention, **projections(q=nn.Linear(8, 8), k=nn.Linear(8, 8), v=nn.Linear(8, 8))),
        WORDS, L(8) + L(2) + 2 * 2 * L(4),
    ),
    "attention, fused and chunked": (Net(fused_attention, **projections(qkv=nn.Linear(8, 24))), WORDS, L(8) + L(2) + 4 * L(4)),
    "attention, fused head by head": (
        Net(per_head_fused_attention, **projections(qkv=nn.Linear(8, 24))), WORDS, L(8) + L(2) + 4 * L(4),
    ),
    # Falcon's layout: query heads, then the key's and the value's, picked out by a list of one place: S_4 of query heads, 4 inside
    # query/key for all of them (the shared key ties them), 4 inside value/output
    "one key/value head, picked by place": (
        Net(picked_by_place, stem=nn.Linear(5, 8), qkv=nn.Linear(8, 24), o=nn.Linear(16, 8), head=nn.Linear(8, 3)),
        WORDS, L(8) + L(4) + 2 * L(4),
    ),
    # one permutation for gate, up and down
    "gated MLP": (Net(swiglu, gate=nn.Linear(5, 7), up=nn.Linear(5, 7), down=nn.Linear(7, 3)), ROW, L(7)),
    "gated MLP, packed": (Net(packed_swiglu, both=nn.Linear(5, 14), down=nn.Linear(7, 3)), ROW, L(7)),
    "RMSNorm residual, a module of one's own": (
        Net(normed, stem=nn.Linear(5, 8), norm=RMS(8), up=nn.Linear(8, 6), down=nn.Linear(6, 8), last=RMS(8),
            head=nn.Linear(8, 3)),
        ROW, L(8) + L(6),
    ),
    "tied embedding": (
        Net(tied, embed=nn.Embedding(11, 6), norm=RMS(6), up=nn.Linear(6, 7), down=nn.Linear(7, 6)),
        IDS, L(6) + L(7),
    ),
    # stream 6; per block: 2 key/value heads, 2 query heads in each, 4 inside value/output of each, nothing inside the rotated
    # queries and keys, and the gated MLP's 7
    "decoder: grouped queries, rotary": (Decoder(), IDS, L(6) + 2 * (L(2) + 2 * L(2) + 2 * L(4) + L(7))),
    # stream 8; per block 2 heads, 4 inside query/key and value/output of each, 10 in the MLP
    "vision transformer": (VisionTransformer(), IMAGES, L(8) + 2 * (L(2) + 4 * L(4) + L(10))),
    # stream 8; per block: 2 groups, 3 channels in each on either side of the grouped convolution
    "grouped residual blocks": (
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), GroupedResidual(), GroupedResidual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                      nn.Linear(8, 2)),
        IMAGES, L(8) + 2 * (L(2) + 4 * L(3)),
    ),
    # every convolution's outputs, skips being read beside others: 4, 5, 6 down, 7 by the transposed one, 5 and 4 up
    "U-net": (
        Net(unet, d1=nn.Conv2d(3, 4, 3, padding=1), d2=nn.Conv2d(4, 5, 3, padding=1), d3=nn.Conv2d(5, 6, 3, padding=1),
            t2=nn.ConvTranspose2d(6, 7, 2, 2), u2=nn.Conv2d(12, 5, 3, padding=1), u1=nn.Conv2d(9, 4, 3, padding=1),
            head=nn.Conv2d(4, 2, 1)),
        IMAGES, L(4, 5, 6, 7, 5, 4),
    ),
    # two layers of two directions, each with its own 6 units
    "bidirectional LSTM of two layers": (
        Net(lambda net, x: net.head(net.lstm(x)[0]), lstm=nn.LSTM(5, 6, 2, bidirectional=True, batch_first=True),
            head=nn.Linear(12, 2)),
        WORDS, 4 * L(6),
    ),
    # stream 6; inner channels 5 through both halves, convolution, step, decay and skip; 3 states; 2 of the step's bottleneck
    "selective state space": (Mamba(), IDS, L(6) + L(5) + L(3) + L(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_group_is_the_one_worked_out_by_hand(name):
    model, shape, theory = CASES[name]
    torch.manual_seed(0)
    words = any(isinstance(module, nn.Embedding) for module in model.modules())
    inputs = torch.randint(0, 11, shape) if words else torch.randn(shape)
    found = discover_symmetry(model, (inputs,))
    print(f"{name}: 10^{found.log10_order():.3f} found, 10^{theory:.3f} by hand, error {found.proof.max_relative_error:.0e}")
    assert found.log10_order() == pytest.approx(theory, abs=1e-9)
    assert found.proof.passed
    assert not found.unknown_ops
    assert not any("defect" in note for note in found.notes)
