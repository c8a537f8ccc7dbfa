"""Routing by index: experts chosen by top-k or arg-max are one factor, and hidden units depend on it just where they may."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.symmetry import discover_symmetry
from workbench.symmetry.dependence import Dependence

# The grouped product wants widths that are multiples of 8.
BATCH, WIDTH, HIDDEN, EXPERTS, CHOSEN = 5, 8, 16, 3, 2


def orders(*sizes) -> float:
    return sum(math.lgamma(n + 1) for n in sizes) / math.log(10)


# The stream is S_width, the experts S_E, and each expert's hidden units have a permutation of their own.
WREATH = orders(WIDTH, EXPERTS, *[HIDDEN] * EXPERTS)
# One permutation of the hidden units common to all experts.
COMMON = orders(WIDTH, EXPERTS, HIDDEN)


class Experts(nn.Module):
    """A residual block of two-layer experts held as stacked tensors; ``route(self, x, p)`` says how they are reached."""

    def __init__(self, route) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.read = nn.Linear(7, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN, generator=generator))
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator))
        self.out = nn.Linear(WIDTH, 3)
        self.route = route

    def forward(self, x):
        x = self.read(x)
        return self.out(x + self.route(self, x, self.router(x).softmax(-1)))

    def all_experts(self, x, gates):
        hidden = torch.einsum("bd,edh->beh", x, self.up).relu()
        return torch.einsum("be,beh,ehd->bd", gates, hidden, self.down)


def dense(net, x, p):
    return net.all_experts(x, p)


def scattered(net, x, p):
    values, chosen = p.topk(CHOSEN, -1)
    return net.all_experts(x, torch.zeros_like(p).scatter(1, chosen, values / values.sum(-1, keepdim=True)))


def masked(net, x, p):
    mask = torch.zeros_like(p).scatter_(1, p.topk(CHOSEN, -1).indices, 1.0)
    return net.all_experts(x, p * mask)


def one_hot(net, x, p):
    values, chosen = p.topk(CHOSEN, -1)
    return net.all_experts(x, (F.one_hot(chosen, EXPERTS) * values[..., None]).sum(1))


def gathered(net, x, p):
    values, chosen = p.topk(CHOSEN, -1)
    hidden = torch.einsum("bd,bkdh->bkh", x, net.up[chosen]).relu()
    return (torch.einsum("bkh,bkhd->bkd", hidden, net.down[chosen]) * values[..., None]).sum(1)


def flattened(net, x, p):
    values, chosen = p.topk(CHOSEN, -1)
    flat = chosen.reshape(-1)
    rows = x[torch.arange(BATCH).repeat_interleave(CHOSEN)]
    hidden = torch.bmm(rows[:, None], net.up[flat]).relu()
    y = torch.bmm(hidden, net.down[flat])[:, 0] * values.reshape(-1, 1)
    return y.view(BATCH, CHOSEN, WIDTH).sum(1)


def switch(net, x, p):
    best = p.argmax(-1)
    hidden = torch.einsum("bd,bdh->bh", x, net.up[best]).relu()
    return torch.einsum("bh,bhd->bd", hidden, net.down[best]) * p.gather(1, best[:, None])


def ranked(net, x, p):
    """Every rank is looked up on its own."""
    values, chosen = p.topk(CHOSEN, -1)
    y = 0
    for rank in range(CHOSEN):
        which = chosen[:, rank]
        hidden = torch.einsum("bd,bdh->bh", x, net.up[which]).relu()
        y = y + torch.einsum("bh,bhd->bd", hidden, net.down[which]) * values[:, rank, None]
    return y


def dispatched(net, x, p, *, back=None, counted=None):
    """Rows sorted by expert, one product over the stretches, and the rows put back."""
    values, chosen = p.topk(CHOSEN, -1)
    flat = chosen.reshape(-1)
    order = flat.argsort()
    rows = x[order // CHOSEN]
    counts = torch.histc((flat if counted is None else counted(chosen)).float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
    ends = counts.cumsum(0, dtype=torch.int32)
    hidden = torch._grouped_mm(rows.bfloat16(), net.up.bfloat16(), offs=ends).relu()
    y = torch._grouped_mm(hidden, net.down.bfloat16(), offs=ends).float()
    y = y[order.argsort()] if back is None else back(y, order)
    return (y * values.reshape(-1, 1)).view(BATCH, CHOSEN, WIDTH).sum(1)


def dispatched_back_by_writing(net, x, p):
    def back(y, order):
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order))
        return y[places]

    return dispatched(net, x, p, back=back)


def best_one_after_another(net, x, p):
    """Indices made one after another and laid side by side."""
    first = p.argmax(-1, keepdim=True)
    second = p.scatter(1, first, -1.0).argmax(-1, keepdim=True)
    chosen = torch.cat([first, second], 1)
    hidden = torch.einsum("bd,bkdh->bkh", x, net.up[chosen]).relu()
    return (torch.einsum("bkh,bkhd->bkd", hidden, net.down[chosen]) * p.gather(1, chosen)[..., None]).sum(1)


RIGHT = [
    best_one_after_another,
    dense,
    scattered,
    masked,
    one_hot,
    gathered,
    flattened,
    switch,
    ranked,
    dispatched,
    dispatched_back_by_writing,
]


@pytest.mark.parametrize("route", RIGHT, ids=lambda route: route.__name__)
def test_experts_are_one_factor_and_hidden_units_depend_on_it(route):
    found = discover_symmetry(Experts(route), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(WREATH)
    assert found.proof.passed
    assert not found.unknown_ops
    assert not found.notes


def crossed_ranks(net, x, p):
    """What the first choice computed is read by the second choice's weights: the hidden order must be common to all experts."""
    chosen = p.topk(CHOSEN, -1).indices
    hidden = torch.einsum("bd,bdh->bh", x, net.up[chosen[:, 0]]).relu()
    return torch.einsum("bh,bhd->bd", hidden, net.down[chosen[:, 1]])


def crossed_tokens(net, x, p):
    """The weights of one example's choice meet the hidden units of another's."""
    best = p.argmax(-1)
    hidden = torch.einsum("bd,bdh->bh", x, net.up[best]).relu()
    return torch.einsum("bh,bhd->bd", hidden, net.down[best.flip(0)])


def test_hidden_units_of_different_choices_must_not_be_permuted_apart():
    found = discover_symmetry(Experts(crossed_ranks), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(COMMON)
    assert found.proof.passed
    assert not found.notes
    # Turning the indices round is more than looking up: the experts are pinned, and the hidden units common.
    found = discover_symmetry(Experts(crossed_tokens), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(orders(WIDTH, HIDDEN))
    assert found.proof.passed
    assert not found.notes


def sorted_rows_in_order(net, x, p):
    """What is done to a sorted row depends on its place."""
    return dispatched(net, x, p, back=lambda y, order: y.cumsum(0)[order.argsort()])


def rows_never_put_back(net, x, p):
    return dispatched(net, x, p, back=lambda y, order: y)


def ends_of_other_rows(net, x, p):
    """The stretches end where those of the second choices would."""
    return dispatched(net, x, p, counted=lambda chosen: chosen[:, 1].repeat(2))


@pytest.mark.parametrize("route", [sorted_rows_in_order, rows_never_put_back, ends_of_other_rows])
def test_sorted_rows_that_are_used_in_their_order_pin_the_experts(route):
    found = discover_symmetry(Experts(route), (torch.randn(BATCH, 7),))
    assert not any(group.size == EXPERTS for group in found.groups.values())
    assert found.proof.passed
    assert not any("defect" in note for note in found.notes)


def test_the_proof_rejects_hidden_orders_of_their_own_where_choices_cross(monkeypatch):
    monkeypatch.setattr(Dependence, "_may_depend", lambda self, f, b: f.size == HIDDEN and b.size == EXPERTS)
    found = discover_symmetry(Experts(crossed_ranks), (torch.randn(BATCH, 7),))
    assert any("defect" in note for note in found.notes)


NUMBERS = {
    "added": lambda net, x, p: x * p.argmax(-1, keepdim=True),
    "parity": lambda net, x, p: x * (p.argmax(-1, keepdim=True) % 2),
    "compared with one": lambda net, x, p: x * (p.argmax(-1, keepdim=True) == 1),
    "clamped": lambda net, x, p: net.all_experts(x, F.one_hot(p.argmax(-1).clamp(max=1), EXPERTS).float()),
    "sorted": lambda net, x, p: net.all_experts(x, F.one_hot(p.topk(2, -1).indices.sort(-1).values[:, 0], EXPERTS).float()),
    "another table": lambda net, x, p: x * torch.tensor([1.0, 2.0, 4.0])[p.argmax(-1)][:, None],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_indices_used_as_numbers_keep_the_experts_in_order(name):
    found = discover_symmetry(Experts(NUMBERS[name]), (torch.randn(BATCH, 7),))
    assert not any(group.size == EXPERTS for group in found.groups.values())
    assert found.proof.passed
    assert not any("defect" in note for note in found.notes)
    reasons = {pinned.reason for pinned in found.pinned if pinned.tensor == "router.weight"}
    assert reasons  # and they say why


def test_indices_that_are_an_output_pin_and_are_ignored_with_outputs():
    class Both(Experts):
        def forward(self, x):
            x = self.read(x)
            p = self.router(x).softmax(-1)
            return {"y": self.out(x + self.route(self, x, p)), "chosen": p.argmax(-1)}

    net, inputs = Both(switch), (torch.randn(BATCH, 7),)
    assert discover_symmetry(net, inputs).log10_order() == pytest.approx(orders(WIDTH, *[HIDDEN] * EXPERTS))
    assert discover_symmetry(net, inputs, outputs=["y"]).log10_order() == pytest.approx(WREATH)


def test_group_limited_routing():
    """The best group of experts first, then the best expert in it: S_(E/n) ≀ S_n on the router, and hidden units beside it."""
    groups, inside = 3, 2

    class Limited(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(7, WIDTH)
            self.router = nn.Linear(WIDTH, groups * inside)
            self.up = nn.Parameter(torch.randn(groups * inside, WIDTH, HIDDEN))
            self.down = nn.Parameter(torch.randn(groups * inside, HIDDEN, WIDTH))
            self.out = nn.Linear(WIDTH, 3)

        def forward(self, x):
            x = self.read(x)
            p = self.router(x).sigmoid()
            best = p.view(-1, groups, inside).sum(-1).topk(2, -1).indices
            mask = torch.zeros(len(x), groups).scatter(1, best, 1.0)[..., None].expand(-1, -1, inside).reshape(len(x), -1)
            values, chosen = (p * mask).topk(2, -1)
            hidden = torch.einsum("bd,bkdh->bkh", x, self.up[chosen]).relu()
            return self.out(x + (torch.einsum("bkh,bkhd->bkd", hidden, self.down[chosen]) * values[..., None]).sum(1))

    found = discover_symmetry(Limited(), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(orders(WIDTH, groups, *[inside] * groups, *[HIDDEN] * (groups * inside)))
    assert found.proof.passed
    assert not found.notes
