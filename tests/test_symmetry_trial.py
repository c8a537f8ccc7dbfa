"""Models that remember, draw random numbers or write into themselves: the proof compares like with like, and leaves no trace."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.symmetry import LinearFactor, discover_symmetry

X = (torch.randn(4, 5, generator=torch.Generator().manual_seed(0)),)


class Net(nn.Module):
    def __init__(self, after=lambda net, y: y, between=lambda net, h: h.relu()) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(5, 6), nn.Linear(6, 3)
        self.after, self.between, self.calls = after, between, 0
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        return self.after(self, self.two(self.between(self, self.one(x))))


def counted(net, y):
    net.calls += 1
    return y * net.calls


def counted_in_a_buffer(net, y):
    net.count += 1
    return y * net.count


def gathered(net, y):
    net.seen.append(y)
    return sum(net.seen)


def noisy(net, y):
    return y + torch.rand(3)


def noisy_by_torch_function(net, y):
    return y * F.dropout(torch.ones(3), 0.3, training=True)


RESTLESS = [counted, counted_in_a_buffer, gathered, noisy, noisy_by_torch_function]


@pytest.mark.parametrize("after", RESTLESS)
def test_a_model_that_gives_another_output_at_every_call_is_proved_all_the_same(after):
    symmetry = discover_symmetry(Net(after), X, scales=True)
    assert [group.size for group in symmetry.groups.values()] == [6]
    assert len(symmetry.scalings) == 1
    assert not any("defect" in note for note in symmetry.notes)
    assert symmetry.proof.passed
    assert symmetry.proof.max_relative_error < 1e-14
    assert symmetry.proof.shapes == ("4×5", "5×5")


@pytest.mark.parametrize("after", RESTLESS)
def test_a_wrong_claim_about_it_is_rejected(after):
    """That one output differs from the next says nothing about how well it is determined by the weights."""
    net = Net(after)
    symmetry = discover_symmetry(net, X, scales=True)
    (factor,), (scaling,) = symmetry.groups, symmetry.scalings.values()
    claimed = LinearFactor(factor, 6, 1, scaling.tensors, powers=scaling.powers)  # not across the ReLU
    verdict = replace(symmetry, linear=(claimed,)).check(net, X)
    assert not verdict.passed
    assert verdict.per_group[claimed.name] > 1e-3


def test_numbers_that_happen_to_be_alike_in_one_draw_are_not_taken_for_equal():
    """Both factors are drawn alike in half of the calls."""
    for seed in range(8):
        net = Net(between=lambda net, h: h[:, :2] * torch.randint(1, 3, (2,)))
        net.two = nn.Linear(2, 3)
        torch.manual_seed(seed)
        symmetry = discover_symmetry(net, X)
        moved = {member.tensor for group in symmetry.groups.values() for member in group.members}
        assert "two.weight" not in moved
    net.between = lambda net, h: h[:, :2] * torch.full((2,), 2)
    moved = {member.tensor for group in discover_symmetry(net, X).groups.values() for member in group.members}
    assert "two.weight" in moved


def test_the_callers_random_numbers_are_not_used_up():
    net = Net(noisy)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    discover_symmetry(net, X)
    assert torch.equal(torch.rand(3), expected)


class Shortened(nn.Module):
    """An embedding that writes shorter rows into its own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4, max_norm=0.1), nn.Linear(4, 3)

    def forward(self, words):
        return self.out(self.table(words))


def test_a_model_that_writes_into_its_own_weights_is_left_as_it_was():
    net, words = Shortened(), torch.arange(6).reshape(2, 3)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    discover_symmetry(net, (words,))
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    net(words)  # by itself it does change them
    assert not torch.equal(net.table.weight, before["table.weight"])


def test_an_activation_that_a_module_kept_from_training_is_no_hindrance():
    net = Net(gathered)
    net(X[0]).sum().backward()
    (kept,), gradient = net.seen, net.one.weight.grad.clone()
    symmetry = discover_symmetry(net, X)
    assert [group.size for group in symmetry.groups.values()] == [6]
    assert symmetry.proof.passed
    assert net.seen == [kept]
    assert kept.grad_fn is not None
    assert torch.equal(net.one.weight.grad, gradient)


@pytest.mark.parametrize("norm", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
def test_the_old_norms_of_weights_are_taken(norm):
    with pytest.warns(FutureWarning) if norm is torch.nn.utils.weight_norm else nullcontext():
        first = norm(nn.Linear(5, 6))
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(6, 3))
    net(X[0])
    symmetry = discover_symmetry(net, X)
    assert [group.size for group in symmetry.groups.values()] == [6]
    assert symmetry.proof.passed
