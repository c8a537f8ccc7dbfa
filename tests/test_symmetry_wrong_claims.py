"""Groups that look right and are wrong: the check rejects each, on models whose discovered group it accepts.

Every wrong claim is made with care: its permutation moves all the tensors a person would think of, and nothing else moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.symmetry import Symmetry, discover_symmetry
from workbench.symmetry.entries import FIXED, MOVED
from workbench.symmetry.group import build
from workbench.symmetry.layout import Layout, Leaf, Product

f = math.factorial
IMAGE, ROW, SEQUENCE = (2, 3, 8, 8), (2, 5), (2, 7, 5)


def rotate(x):
    """Positions turn the pairs (i, i + d/2) of the last axis, each pair at its own speed."""
    d = x.shape[-1]
    angle = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(d // 2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Attention(nn.Module):
    """A stream of 8, ``groups`` key/value heads of 4 units with ``per`` query heads each.

    rotary: positions by rotation; normed: queries and keys are normalised, with weights shared by the heads.
    """

    def __init__(self, groups, per, *, rotary=False, normed=False):
        super().__init__()
        self.stem, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.q, self.out = nn.Linear(8, groups * per * 4, bias=False), nn.Linear(groups * per * 4, 8)
        self.k, self.v = nn.Linear(8, groups * 4, bias=False), nn.Linear(8, groups * 4, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(4), nn.RMSNorm(4)) if normed else (nn.Identity(), nn.Identity())
        self.per, self.place = per, rotate if rotary else nn.Identity()

    def forward(self, x):
        x = self.stem(x)
        q, k, v = (y.unflatten(-1, (-1, 4)).transpose(1, 2) for y in (self.q(x), self.k(x), self.v(x)))
        q, k = self.place(self.q_norm(q)), self.place(self.k_norm(k))
        y = F.scaled_dot_product_attention(q, k.repeat_interleave(self.per, 1), v.repeat_interleave(self.per, 1))
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(5, 7), nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Concatenated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(8, 2)

    def forward(self, x):
        x = torch.relu(self.a(x))
        return self.head(torch.relu(torch.cat([x, self.b(x)], -1)))


def normed():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 2, 1))


def grouped():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 2, 1))


def shuffled():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, groups=1),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.ChannelShuffle(2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.ReLU(),
        nn.Conv2d(8, 2, 1),
    )


def flattened():
    return nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5), nn.ReLU(), nn.Linear(5, 2))


def batch_normed():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))


@dataclass(frozen=True)
class Wrong:
    """model: a factory; shape: of its input; order: of the true group; axes: (tensor, axis) -> layout of the wrong claim;
    factors: name -> its size, or with ``over`` one copy for every value of another factor."""

    model: object
    shape: tuple[int, ...]
    order: int
    axes: dict[tuple[str, int], Layout]
    factors: dict[str, dict]


def product(*parts) -> Product:
    """A number is a fixed stretch."""
    return Product(tuple(Leaf(None, part) if isinstance(part, int) else part for part in parts))


def claim(size, *places, model, shape, order) -> Wrong:
    """One factor "wrong" of ``size``, laid out at ``places`` (tensor, axis, layout)."""
    return Wrong(model, shape, order, {(tensor, axis): layout for tensor, axis, layout in places}, {"wrong": {"size": size}})


def free(size):
    return Leaf("wrong", size)


grouped_queries = {"model": lambda: Attention(3, 2), "shape": SEQUENCE, "order": f(8) * f(3) * f(2) ** 3 * f(4) ** 3 * f(4) ** 3}
# Positions tell all query/key units apart, which leaves the two heads' value units.
rotary = {"model": lambda: Attention(2, 1, rotary=True), "shape": SEQUENCE, "order": f(8) * f(2) * f(4) ** 2}
heads = {"model": lambda: Attention(2, 1), "shape": SEQUENCE, "order": f(8) * f(2) * f(4) ** 2 * f(4) ** 2}
# The weights of the norms belong to all heads, so query/key units have one order for both heads.
shared_norm = {"model": lambda: Attention(2, 1, normed=True), "shape": SEQUENCE, "order": f(8) * f(2) * f(4) * f(4) ** 2}
group_norm = {"model": normed, "shape": IMAGE, "order": f(2) * f(4) ** 2}
gate = {"model": Gated, "shape": ROW, "order": f(7)}
groups = {"model": grouped, "shape": IMAGE, "order": f(2) * f(4) ** 2 * f(4) ** 2}
shuffle = {"model": shuffled, "shape": IMAGE, "order": f(4) ** 2 * (f(2) * f(2) * f(2) ** 4) * f(4) ** 2}
concat = {"model": Concatenated, "shape": ROW, "order": f(4) * f(4)}
flat = {"model": flattened, "shape": IMAGE, "order": f(6) * f(5)}
statistics = {"model": batch_normed, "shape": IMAGE, "order": f(8)}


def own_order_of_each_head() -> Wrong:
    inside = product(Leaf("heads", 2), Leaf("inside", 4))
    outer = product(Leaf("heads", 2), 4)
    axes = {("q.weight", 0): inside, ("k.weight", 0): inside, ("v.weight", 0): outer, ("out.weight", 1): outer}
    factors = {"heads": {"size": 2}, "inside": {"size": 4, "over": ("heads",), "over_sizes": (2,)}}
    return Wrong(shared_norm["model"], SEQUENCE, shared_norm["order"], axes, factors)


WRONG = {
    "query heads across key/value groups": claim(
        6, ("q.weight", 0, product(free(6), 4)), ("out.weight", 1, product(free(6), 4)), **grouped_queries
    ),
    "key/value heads without their query heads": claim(
        3, ("k.weight", 0, product(free(3), 4)), ("v.weight", 0, product(free(3), 4)), **grouped_queries
    ),
    "rotary: any order inside the heads": claim(
        4, ("q.weight", 0, product(2, free(4))), ("k.weight", 0, product(2, free(4))), **rotary
    ),
    "rotary: the members of a pair": claim(
        2, ("q.weight", 0, product(2, free(2), 2)), ("k.weight", 0, product(2, free(2), 2)), **rotary
    ),
    "rotary: two pairs": claim(2, ("q.weight", 0, product(2, 2, free(2))), ("k.weight", 0, product(2, 2, free(2))), **rotary),
    "units across heads": claim(
        8, *((name, 0, free(8)) for name in ("q.weight", "k.weight", "v.weight")), ("out.weight", 1, free(8)), **heads
    ),
    "value units across heads": claim(8, ("v.weight", 0, free(8)), ("out.weight", 1, free(8)), **heads),
    "own order of each head under a shared norm": own_order_of_each_head(),
    "channels across GroupNorm groups": claim(
        8, *((name, 0, free(8)) for name in ("0.weight", "0.bias", "1.weight", "1.bias")), ("3.weight", 1, free(8)), **group_norm
    ),
    "GLU: the gate only": claim(7, ("gate.weight", 0, free(7)), ("gate.bias", 0, free(7)), ("down.weight", 1, free(7)), **gate),
    "GLU: the other half only": claim(7, ("up.weight", 0, free(7)), ("up.bias", 0, free(7)), ("down.weight", 1, free(7)), **gate),
    "GLU: both halves, not the reader": claim(
        7, *((name, 0, free(7)) for name in ("gate.weight", "gate.bias", "up.weight", "up.bias")), **gate
    ),
    "grouped conv: any order of the outputs": claim(
        8, ("2.weight", 0, free(8)), ("2.bias", 0, free(8)), ("4.weight", 1, free(8)), **groups
    ),
    "grouped conv: groups of the inputs only": claim(
        2, ("0.weight", 0, product(free(2), 4)), ("0.bias", 0, product(free(2), 4)), **groups
    ),
    "channel shuffle: any order of what is shuffled": claim(
        4, ("1.weight", 0, product(2, free(4))), ("1.bias", 0, product(2, free(4))), ("4.weight", 1, free(4)), **shuffle
    ),
    "concat: across the two parts": claim(8, ("head.weight", 1, free(8)), **concat),
    "flatten: places move with the channels": claim(96, ("3.weight", 1, free(96)), **flat),
    "flatten: channels read as if they were the inner axis": claim(
        6, ("0.weight", 0, free(6)), ("0.bias", 0, free(6)), ("3.weight", 1, product(16, free(6))), **flat
    ),
    "BatchNorm without its statistics": claim(
        8, *((name, 0, free(8)) for name in ("0.weight", "0.bias", "1.weight", "1.bias")), ("3.weight", 1, free(8)), **statistics
    ),
}


def claimed(symmetry: Symmetry, wrong: Wrong) -> Symmetry:
    """The wrong group alone: what ``symmetry`` found is fixed."""
    tensors = {}
    for name, entry in symmetry.tensors.items():
        layouts = tuple(wrong.axes.get((name, axis), Leaf(None, n)) for axis, n in enumerate(entry.shape))
        moved = any((name, axis) in wrong.axes for axis in range(len(entry.shape)))
        role = entry.role if entry.role not in (MOVED, FIXED) else MOVED if moved else FIXED
        tensors[name] = replace(entry, layouts=layouts, role=role, orders=())
    assert {name for name, _ in wrong.axes} <= set(tensors)
    return build(tensors, wrong.factors)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_claim_is_rejected_and_the_discovered_group_passes(name):
    wrong = WRONG[name]
    torch.manual_seed(0)
    model, inputs = wrong.model(), (torch.randn(wrong.shape),)
    found = discover_symmetry(model, inputs)
    assert math.prod(f(group.size) ** group.copies for group in found.groups.values()) == wrong.order
    right = found.check(model, inputs)
    assert right.passed
    assert right.max_relative_error < 1e-12
    verdict = claimed(found, wrong).check(model, inputs)
    assert not verdict.passed
    assert verdict.max_relative_error > 1e-7


def test_a_claim_put_together_by_hand_passes_where_it_is_right():
    """The control of the controls: they are not rejected for how they are built."""
    both = claim(7, *((name, 0, free(7)) for name in ("gate.weight", "gate.bias", "up.weight", "up.bias")),
                 ("down.weight", 1, free(7)), **gate)  # fmt: skip
    pairs = claim(2, *((name, 0, product(free(2), 4)) for name in ("q.weight", "k.weight", "v.weight")),
                  ("out.weight", 1, product(free(2), 4)), **rotary)  # fmt: skip
    for right in (both, pairs):
        model, inputs = right.model(), (torch.randn(right.shape),)
        verdict = claimed(discover_symmetry(model, inputs), right).check(model, inputs)
        assert verdict.passed
        assert verdict.max_relative_error < 1e-12


def test_equal_gains_hide_what_a_shared_norm_forbids():
    """With gains of one each head could have its own order: the verdict is about weights drawn at random, not about these."""
    wrong = own_order_of_each_head()
    model, x = wrong.model().double(), torch.randn(SEQUENCE, dtype=torch.float64)
    group = claimed(discover_symmetry(model, (x,)), wrong)
    moved = group.apply(group.sample(3), model.state_dict())
    assert not torch.equal(
        moved["q.weight"].view(2, 4, 8).sort(0).values, model.q.weight.view(2, 4, 8).sort(0).values
    )  # inside moved
    torch.testing.assert_close(torch.func.functional_call(model, moved, (x,)), model(x), rtol=1e-10, atol=1e-12)
    assert not group.check(model, (x,)).passed
