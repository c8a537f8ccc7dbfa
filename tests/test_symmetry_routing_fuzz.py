"""Random programs that route by computed indices: whatever group is found must pass the proof, and often experts are in it."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.symmetry import discover_symmetry

BATCH, WIDTH, HIDDEN, EXPERTS = 4, 6, 5, 4


class Routed(nn.Module):
    """A program drawn from ``seed``: indices are made, cut, turned and viewed, and used in look-ups, gates and comparisons."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        self.read = nn.Linear(7, WIDTH)
        self.routers = nn.ModuleList(nn.Linear(WIDTH, EXPERTS) for _ in range(2))
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN, generator=generator))
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator))
        self.shift = nn.Parameter(torch.randn(EXPERTS, HIDDEN, generator=generator))
        self.value = nn.Parameter(torch.randn(EXPERTS, generator=generator))
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x):
        draw = random.Random(self.seed)
        x = self.read(x)
        scores = [router(x).softmax(-1) for router in self.routers]
        for _ in range(draw.randint(1, 3)):
            p = draw.choice(scores)
            indices = self._indices(draw, p)
            x = x + self._use(draw, x, p, indices)
        return self.out(x)

    def _indices(self, draw, p):
        """(batch, k) indices into the experts."""
        made = draw.choice(["topk", "argmax", "sort", "argsort", "both"])
        if made == "topk":
            indices = p.topk(draw.randint(1, 3), -1).indices
        elif made == "argmax":
            indices = p.argmax(-1, keepdim=True)
        elif made == "sort":
            indices = p.sort(-1, descending=draw.random() < 0.5).indices
        elif made == "argsort":
            indices = (-p).argsort(-1)
        else:
            indices = torch.cat([p.argmax(-1, keepdim=True), p.argmin(-1, keepdim=True)], 1)
        for _ in range(draw.randint(0, 2)):
            step = draw.choice(["cut", "flip", "view", "turn", "clamp", "rotate", "round trip"])
            if step == "cut" and indices.shape[1] > 1:
                indices = indices[:, draw.randrange(indices.shape[1]) :]
            elif step == "flip":
                indices = indices.flip(1)
            elif step == "view":
                indices = indices.reshape(-1).view(BATCH, -1)
            elif step == "turn":
                indices = indices.t().contiguous().t()
            elif step == "clamp":
                indices = indices.clamp(0, EXPERTS - draw.choice([1, 2]))
            elif step == "rotate" and draw.random() < 0.3:
                indices = (indices + 1) % EXPERTS
            elif step == "round trip":
                indices = indices.t().reshape(-1).view(-1, BATCH).t()
        return indices

    def _use(self, draw, x, p, indices):
        k = indices.shape[1]
        other = indices if draw.random() < 0.7 else self._indices(draw, p)
        use = draw.choice(["look up", "flat", "scatter", "one hot", "rank", "value", "equal", "cross"])
        if use == "look up":
            hidden = torch.einsum("bd,bkdh->bkh", x, self.up[indices])
            hidden = (hidden + self.shift[indices] if draw.random() < 0.5 else hidden).relu()
            return torch.einsum("bkh,bkhd->bkd", hidden, self.down[indices]).mean(1)
        if use == "flat":
            flat = indices.reshape(-1)
            rows = x[:, None].expand(-1, k, -1).reshape(-1, WIDTH)
            hidden = torch.bmm(rows[:, None], self.up[flat]).tanh()
            return torch.bmm(hidden, self.down[flat]).view(len(x), k, WIDTH).sum(1)
        gates = None
        if use == "scatter":
            gates = torch.zeros_like(p).scatter(1, indices, p.gather(1, indices))
        elif use == "one hot":
            gates = F.one_hot(indices, EXPERTS).sum(1).to(x.dtype)
        elif use == "equal":
            gates = p * (indices[:, :1] == other[:, :1]) + (indices[..., None] == torch.arange(EXPERTS)).any(1)
        if gates is not None:
            hidden = torch.einsum("bd,edh->beh", x, self.up).relu()
            return torch.einsum("be,beh,ehd->bd", gates, hidden, self.down)
        if use == "rank":
            which = indices[:, draw.randrange(k)]
            hidden = torch.einsum("bd,bdh->bh", x, self.up[which]).relu()
            back = which if draw.random() < 0.6 else indices[:, draw.randrange(k)]
            return torch.einsum("bh,bhd->bd", hidden, self.down[back])
        if use == "value":
            return x * self.value[indices].sum(1, keepdim=True)
        hidden = torch.einsum("bd,bdh->bh", x, self.up[indices[:, 0]]).relu()
        return torch.einsum("bh,bhd->bd", hidden, self.down[other[:, -1]])


def found_by(seed: int):
    torch.manual_seed(seed)
    return discover_symmetry(Routed(seed), (torch.randn(BATCH, 7),))


@pytest.mark.parametrize("block", range(4))
def test_no_claim_about_routed_programs_is_wrong(block):
    with_experts = 0
    for seed in range(10 * block, 10 * block + 10):
        found = found_by(seed)
        assert found.proof.passed, seed
        assert not any("defect" in note for note in found.notes), (seed, found.notes)
        with_experts += any(group.size == EXPERTS for group in found.groups.values())
    assert with_experts  # otherwise nothing was claimed that could be wrong
