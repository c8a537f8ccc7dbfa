"""A small transformer classifier with the parts of a current decoder: grouped-query heads, rotary positions, gated layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workbench.architectures.base import ARCHITECTURES
from workbench.errors import WorkbenchError

POSITIONS = ("rotary", "learned")


class Rotation(nn.Module):
    """Rotary positions (arXiv 2104.09864): (a, b) ↦ (a cos − b sin, b cos + a sin) at angle t·100^(−i/half) for pair i, token t."""

    def __init__(self, tokens: int, size: int) -> None:
        super().__init__()
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(tokens, size // 2), persistent=False)

    def initialise(self, generator: torch.Generator) -> None:
        """The tables; nothing is drawn."""
        tokens, half = self.cos.shape
        angles = torch.outer(torch.arange(tokens), 100.0 ** (-torch.arange(half) / half))
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], dim=-1)


class Positions(nn.Module):
    """x + p: one learned vector per token."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(tokens, width))

    def initialise(self, generator: torch.Generator) -> None:
        self.table.copy_(0.02 * torch.randn(self.table.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class Attention(nn.Module):
    """softmax(q kᵀ/√d) v, every key/value head shared by heads/kv_heads query heads (arXiv 2305.13245); no mask."""

    def __init__(self, width: int, heads: int, kv_heads: int, rotation: nn.Module) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.rotation = rotation
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // heads * kv_heads, bias=False)
        self.value = nn.Linear(width, width // heads * kv_heads, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        def split(y: Tensor, heads: int) -> Tensor:
            return y.unflatten(-1, (heads, -1)).transpose(1, 2)

        q, k = self.rotation(split(self.query(x), self.heads)), self.rotation(split(self.key(x), self.kv_heads))
        q, v = q.unflatten(1, (self.kv_heads, -1)), split(self.value(x), self.kv_heads).unsqueeze(2)
        scores = q @ k.unsqueeze(2).transpose(-1, -2) / q.shape[-1] ** 0.5
        mixed = (scores.softmax(-1) @ v).flatten(1, 2)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """down(silu(gate x) ⊙ up x) (arXiv 2002.05202)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """x + attention(norm x), then x + gated(norm x)."""

    def __init__(self, width: int, hidden: int, attention: Attention) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width, eps=1e-6), attention
        self.norm2, self.gated = nn.RMSNorm(width, eps=1e-6), Gated(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.gated(self.norm2(x))


@ARCHITECTURES.register("transformer", reference="arXiv:2305.13245")
class Transformer(nn.Module):
    """Classifier of ``tokens`` equal parts of the input (the rows of an 8×8 image): embed, pre-norm blocks, mean, logits.

    inputs: numbers of one example, ``tokens`` times the numbers of a token; width: of the residual stream, heads·(head size);
    kv_heads: key/value heads, each shared by heads/kv_heads query heads; hidden: of the gated layer; positions: rotary or learned.
    """

    def __init__(
        self,
        inputs: int = 64,
        outputs: int = 10,
        tokens: int = 8,
        width: int = 32,
        depth: int = 2,
        heads: int = 4,
        kv_heads: int = 2,
        hidden: int = 64,
        positions: str = "rotary",
    ) -> None:
        super().__init__()
        if positions not in POSITIONS:
            raise WorkbenchError(f"Positions {positions!r} were asked for", expected=f"one of {', '.join(POSITIONS)}")
        rotary = positions == "rotary"
        sizes = {"inputs": inputs, "tokens": tokens, "width": width, "heads": heads, "kv_heads": kv_heads}
        if min(sizes.values()) < 1 or inputs % tokens or width % heads or heads % kv_heads or (rotary and width // heads % 2):
            raise WorkbenchError(
                f"A transformer of {', '.join(f'{name}={size}' for name, size in sizes.items())} was asked for",
                expected="tokens to divide inputs, heads to divide width, kv_heads to divide heads; an even head size for rotary",
            )
        self.tokens = tokens
        self.embed = nn.Linear(inputs // tokens, width)
        self.positions = nn.Identity() if rotary else Positions(tokens, width)
        self.blocks = nn.ModuleList(
            Block(width, hidden, Attention(width, heads, kv_heads, Rotation(tokens, width // heads) if rotary else nn.Identity()))
            for _ in range(depth)
        )
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.positions(self.embed(x.flatten(1).unflatten(1, (self.tokens, -1))))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))
