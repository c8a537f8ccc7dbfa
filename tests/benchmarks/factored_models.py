"""Small networks whose groups are factored: heads, query heads in groups, experts. For the planted benchmark and the tests."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head attention with biases; queries and keys of size dk, values of size dv; kv_heads < heads shares keys and values.

    rotary: rotate queries and keys by position, pairs (i, i + dk/2).
    """

    def __init__(self, width: int, heads: int, kv_heads: int, dk: int, dv: int, *, bias: bool = True, rotary: bool = False):
        super().__init__()
        self.heads, self.kv_heads, self.dk, self.dv, self.rotary = heads, kv_heads, dk, dv, rotary
        self.q = nn.Linear(width, heads * dk, bias=bias)
        self.k = nn.Linear(width, kv_heads * dk, bias=bias)
        self.v = nn.Linear(width, kv_heads * dv, bias=bias)
        self.o = nn.Linear(heads * dv, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.heads, self.dk).transpose(1, 2)
        k = self.k(x).view(batch, length, self.kv_heads, self.dk).transpose(1, 2)
        v = self.v(x).view(batch, length, self.kv_heads, self.dv).transpose(1, 2)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        scores = q @ k.mT / math.sqrt(self.dk)
        causal = torch.full((length, length), -math.inf, dtype=x.dtype).triu(1)
        return self.o((torch.softmax(scores + causal, -1) @ v).transpose(1, 2).reshape(batch, length, -1))


def rotate(x: Tensor) -> Tensor:
    length, size = x.shape[-2:]
    half = size // 2
    angle = torch.arange(length)[:, None] / 100 ** (torch.arange(half) / half)
    cos, sin = angle.cos().repeat(1, 2).to(x.dtype), angle.sin().repeat(1, 2).to(x.dtype)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Encoder(nn.Module):
    """Plain multi-head attention blocks on float tokens, LayerNorm and GELU."""

    def __init__(self, inputs=11, width=24, heads=6, dk=5, dv=4, hidden=20, layers=1):
        super().__init__()
        self.into, self.head = nn.Linear(inputs, width), nn.Linear(width, 7)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * layers)])
        self.attention = nn.ModuleList([Attention(width, heads, heads, dk, dv) for _ in range(layers)])
        self.up = nn.ModuleList([nn.Linear(width, hidden) for _ in range(layers)])
        self.down = nn.ModuleList([nn.Linear(hidden, width) for _ in range(layers)])
        self.inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for i, attention in enumerate(self.attention):
            x = x + attention(self.norms[2 * i](x))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x))))
        return self.head(x)

    def example(self) -> tuple[Tensor]:
        return (torch.randn(2, 5, self.inputs, generator=torch.Generator().manual_seed(0)),)


class Decoder(nn.Module):
    """Grouped-query rotary attention, RMSNorm and SwiGLU on tokens."""

    def __init__(self, vocabulary=13, width=24, heads=6, kv_heads=3, size=6, hidden=20, layers=2, rotary=True):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, width), RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.norms = nn.ModuleList([RMSNorm(width) for _ in range(2 * layers)])
        self.attention = nn.ModuleList(
            [Attention(width, heads, kv_heads, size, size, bias=False, rotary=rotary) for _ in range(layers)]
        )
        self.gate, self.up = (nn.ModuleList([nn.Linear(width, hidden, bias=False) for _ in range(layers)]) for _ in "ab")
        self.down = nn.ModuleList([nn.Linear(hidden, width, bias=False) for _ in range(layers)])
        self.vocabulary = vocabulary

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for i, attention in enumerate(self.attention):
            x = x + attention(self.norms[2 * i](x))
            y = self.norms[2 * i + 1](x)
            x = x + self.down[i](F.silu(self.gate[i](y)) * self.up[i](y))
        return self.head(self.norm(x))

    def example(self) -> tuple[Tensor]:
        return (torch.randint(0, self.vocabulary, (2, 5), generator=torch.Generator().manual_seed(0)),)


class Experts(nn.Module):
    """Experts stacked as tensors behind a router: "softmax" mixes all of them, "one-hot" takes the best of each example."""

    def __init__(self, inputs=9, width=16, experts=5, hidden=8, classes=4, gates="softmax"):
        super().__init__()
        self.into, self.router, self.head = nn.Linear(inputs, width), nn.Linear(width, experts), nn.Linear(width, classes)
        self.up, self.up_bias = nn.Parameter(torch.randn(experts, hidden, width)), nn.Parameter(torch.randn(experts, hidden))
        self.down = nn.Parameter(torch.randn(experts, width, hidden))
        self.inputs, self.gates = inputs, gates

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.into(x))
        scores = self.router(x)
        gates = torch.softmax(scores, -1)
        if self.gates == "one-hot":
            gates = gates * (scores == scores.amax(-1, keepdim=True)).to(x.dtype)
        inside = F.gelu(torch.einsum("bd,ehd->beh", x, self.up) + self.up_bias)
        return self.head(x + torch.einsum("beh,edh,be->bd", inside, self.down, gates))

    def example(self) -> tuple[Tensor]:
        return (torch.randn(3, self.inputs, generator=torch.Generator().manual_seed(0)),)


def gaussian_state(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """Every tensor drawn from a normal distribution, matrices with variance 1/fan-in, in float64."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, tensor in model.state_dict().items():
        scale = tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 1.0
        drawn[name] = scale * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return drawn
