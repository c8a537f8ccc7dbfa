"""Whole branches that may change places: experts and heads held as modules, parallel towers, loops over stacked weights."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from workbench.errors import WorkbenchError
from workbench.matching import align
from workbench.symmetry import Symmetry, discover_symmetry
from workbench.symmetry.layout import Leaf

BATCH, WIDTH, HIDDEN, EXPERTS = 5, 6, 4, 3


def orders(*sizes) -> float:
    return sum(math.lgamma(n + 1) for n in sizes) / math.log(10)


WREATH = orders(WIDTH, EXPERTS, *[HIDDEN] * EXPERTS)
APART = orders(WIDTH, *[HIDDEN] * EXPERTS)


class Experts(nn.Module):
    """A residual block whose experts are modules; ``mix(self, x, p)`` says how their outputs come together."""

    def __init__(self, mix, activations=(nn.GELU,) * EXPERTS) -> None:
        super().__init__()
        self.read = nn.Linear(7, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), act(), nn.Linear(HIDDEN, WIDTH)) for act in activations
        )
        self.out = nn.Linear(WIDTH, 3)
        self.mix = mix

    def forward(self, x):
        x = self.read(x)
        return self.out(x + self.mix(self, x, self.router(x).softmax(-1)))


def summed(net, x, p):
    return sum(p[:, e, None] * expert(x) for e, expert in enumerate(net.experts))


def stacked(net, x, p):
    return (torch.stack([expert(x) for expert in net.experts], -1) * p[:, None]).sum(-1)


def accumulated(net, x, p):
    y = x * 0.5
    for e, expert in enumerate(net.experts):
        y = y + p[..., e : e + 1] * expert(x)
    return y


def chosen(net, x, p):
    values, indices = p.topk(2, -1)
    y = torch.zeros_like(x)
    for e, expert in enumerate(net.experts):
        y = y + (values * (indices == e)).sum(-1, keepdim=True) * expert(x)
    return y


@pytest.mark.parametrize("mix", [summed, stacked, accumulated, chosen], ids=lambda mix: mix.__name__)
def test_experts_as_modules_change_places_with_the_rows_of_the_router(mix):
    net = Experts(mix)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = discover_symmetry(net, (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(WREATH)
    assert found.proof.passed
    assert not found.notes
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    whole = {member.tensor for group in found.groups.values() for member in group.members if member.axis is None}
    assert whole == {name for name in before if name.startswith("experts.")}


@pytest.fixture(scope="module")
def experts() -> tuple[Experts, Symmetry]:
    torch.manual_seed(0)
    net = Experts(summed)
    return net, discover_symmetry(net, (torch.randn(BATCH, 7),))


def test_the_function_is_kept_and_elements_compose(experts):
    net, symmetry = experts
    net = copy.deepcopy(net).double()
    state, x = net.state_dict(), torch.randn(BATCH, 7, dtype=torch.float64)
    g, h = symmetry.sample(1), symmetry.sample(2)
    moved = symmetry.apply(g, state)
    assert not torch.equal(moved["experts.0.0.weight"], state["experts.0.0.weight"])
    torch.testing.assert_close(torch.func.functional_call(net, moved, x), net(x), rtol=1e-12, atol=1e-12)
    one, two = symmetry.apply(g @ h, state), symmetry.apply(g, symmetry.apply(h, state))
    back = symmetry.apply(g.inverse(), moved)
    assert all(torch.equal(one[name], two[name]) and torch.equal(back[name], state[name]) for name in state)


def test_experts_moved_without_the_router_are_rejected(experts):
    """The negative control: the router's rows stay."""
    net, symmetry = experts
    factor = next(name for name, group in symmetry.groups.items() if group.size == EXPERTS)
    tensors = dict(symmetry.tensors)
    for name in ("router.weight", "router.bias"):
        entry = tensors[name]
        kept = tuple(Leaf(None, EXPERTS) if layout == Leaf(factor, EXPERTS) else layout for layout in entry.layouts)
        tensors[name] = replace(entry, layouts=kept)
    verdict = replace(symmetry, tensors=tensors).check(net, (torch.randn(BATCH, 7),))
    assert not verdict.passed
    assert verdict.max_relative_error > 1e-7
    assert symmetry.check(net, (torch.randn(BATCH, 7),)).passed


def test_branches_survive_saving_and_cannot_be_a_plain_specification(experts, tmp_path):
    net, symmetry = experts
    loaded = Symmetry.load(symmetry.save(tmp_path / "symmetry.json"))
    state = net.state_dict()
    one, two = symmetry.apply(symmetry.sample(3), state), loaded.apply(loaded.sample(3), state)
    assert all(torch.equal(one[name], two[name]) for name in state)
    assert loaded.explain() == symmetry.explain()
    assert "whole branches change places: experts.0.0.weight, experts.1.0.weight" in symmetry.explain("router")
    with pytest.raises(WorkbenchError, match=r"cannot express"):
        symmetry.to_permutation_spec()


def test_weight_matching_finds_planted_experts(experts):
    net, symmetry = experts
    state = net.state_dict()
    planted = symmetry.sample(11)
    found = align(symmetry, state, symmetry.apply(planted, state), seed=0)
    assert found.distance_after <= 1e-9 * found.distance_before
    assert found.element @ planted == symmetry.identity()


def test_experts_that_differ_do_not_change_places():
    found = discover_symmetry(Experts(summed, (nn.GELU, nn.SiLU, nn.Tanh)), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(APART)
    # two alike and one other: only the two
    found = discover_symmetry(Experts(summed, (nn.GELU, nn.GELU, nn.Tanh)), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(APART + orders(2))
    assert found.proof.passed


def test_experts_with_weights_of_their_own_place_do_not_change_places():
    found = discover_symmetry(
        Experts(lambda net, x, p: sum((e + 1) * f(x) for e, f in enumerate(net.experts))), (torch.randn(BATCH, 7),)
    )
    assert found.log10_order() == pytest.approx(APART)
    assert found.proof.passed


@pytest.mark.parametrize(("places", "theory"), [((2, 1, 0), WREATH), ((1, 0, 2), APART)])
def test_experts_that_read_the_router_in_another_order(places, theory):
    """Backwards they are numbered backwards. In any other order nothing is claimed, rather than something wrong."""

    def mix(net, x, p):
        return sum(p[:, place, None] * expert(x) for place, expert in zip(places, net.experts, strict=True))

    found = discover_symmetry(Experts(mix), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(theory)
    assert found.proof.passed
    assert not any("defect" in note for note in found.notes)


def test_a_shared_expert_stays():
    class Shared(Experts):
        def __init__(self):
            super().__init__(summed)
            self.shared = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

        def forward(self, x):
            x = self.read(x)
            return self.out(x + self.shared(x) + summed(self, x, self.router(x).softmax(-1)))

    found = discover_symmetry(Shared(), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(WREATH + orders(HIDDEN))


def test_a_loop_over_stacked_weights():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(7, WIDTH)
            self.router = nn.Linear(WIDTH, EXPERTS)
            self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH))
            self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))
            self.out = nn.Linear(WIDTH, 3)

        def forward(self, x):
            x = self.read(x)
            p = self.router(x).softmax(-1)
            for e in range(EXPERTS):
                x = x + p[:, e, None] * nn.functional.linear(nn.functional.linear(x, self.up[e]).relu(), self.down[e])
            return self.out(x)

    # every expert reads what the ones before it wrote: no exchange, but hidden units of its own

    found = discover_symmetry(Loop(), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(APART)
    assert found.proof.passed

    class Parallel(Loop):
        def forward(self, x):
            x = self.read(x)
            p = self.router(x).softmax(-1)
            y = x
            for e in range(EXPERTS):
                y = y + p[:, e, None] * nn.functional.linear(nn.functional.linear(x, self.up[e]).relu(), self.down[e])
            return self.out(y)

    found = discover_symmetry(Parallel(), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(WREATH)
    assert found.proof.passed


def test_heads_as_modules():
    """Each head a module with its own query, key, value and output: the S_H of whole heads, and d_k and d_v inside each."""
    heads, inside = 3, 4

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(WIDTH, inside, bias=False) for _ in range(3))
            self.o = nn.Linear(inside, WIDTH, bias=False)

        def forward(self, x):
            return self.o((self.q(x) @ self.k(x).mT / 2).softmax(-1) @ self.v(x))

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(7, WIDTH)
            self.heads = nn.ModuleList(Head() for _ in range(heads))
            self.out = nn.Linear(WIDTH, 3)

        def forward(self, x):
            x = self.read(x)
            return self.out(x + sum(head(x) for head in self.heads))

    found = discover_symmetry(Attention(), (torch.randn(2, 5, 7),))
    assert found.log10_order() == pytest.approx(orders(WIDTH, heads, *[inside] * (2 * heads)))
    assert found.proof.passed


def test_parallel_convolution_towers_with_batch_norm():
    """Towers laid side by side and read by one convolution: its input channels move with the towers."""

    class Tower(nn.Sequential):
        def __init__(self):
            super().__init__(
                nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5), nn.ReLU()
            )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.towers = nn.ModuleList(Tower() for _ in range(2))
            self.head = nn.Conv2d(10, 3, 1)

        def forward(self, x):
            return self.head(torch.cat([tower(x) for tower in self.towers], 1)).mean((2, 3))

    net = Net()
    found = discover_symmetry(net, (torch.randn(2, 3, 6, 6),))
    assert found.log10_order() == pytest.approx(orders(2, 4, 4, 5, 5))
    assert found.proof.passed
    moved = found.apply(found.sample(0), net.state_dict())
    assert moved["towers.0.1.num_batches_tracked"].dtype == torch.int64


def test_branches_on_meta_and_in_a_deep_net():
    with torch.device("meta"):
        net = Experts(summed)
        inputs = (torch.randn(BATCH, 7),)
    assert discover_symmetry(net, inputs).log10_order() == pytest.approx(WREATH)

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(7, WIDTH)
            self.blocks = nn.ModuleList(Experts(summed) for _ in range(3))
            self.out = nn.Linear(WIDTH, 3)

        def forward(self, x):
            x = self.read(x)
            for block in self.blocks:
                x = x + summed(block, x, block.router(x).softmax(-1))
            return self.out(x)

    found = discover_symmetry(Deep(), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(orders(WIDTH) + 3 * (WREATH - orders(WIDTH)))


def test_a_class_that_gains_nothing_does_not_hide_one_that_does():
    """Two thin layers laid side by side and then cut elsewhere lose by being stacked; the experts beside them still gain."""

    class Both(Experts):
        def __init__(self):
            super().__init__(summed)
            self.left, self.right = nn.Linear(7, 8), nn.Linear(7, 8)
            self.narrow, self.wide = nn.Linear(10, 2), nn.Linear(6, 2)

        def forward(self, x):
            side = torch.cat([self.left(x), self.right(x)], 1).relu()
            return super().forward(x), self.narrow(side[:, :10]), self.wide(side[:, 10:])

    found = discover_symmetry(Both(), (torch.randn(BATCH, 7),))
    assert found.log10_order() == pytest.approx(WREATH + orders(8, 2, 6))
