"""Rules one by one: the order of a small model around an operation against a closed form, and what must not be claimed."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.errors import WorkbenchError
from workbench.symmetry import discover_symmetry


def lf(*sizes: int) -> float:
    return sum(math.lgamma(n + 1) for n in sizes) / math.log(10)


class Around(nn.Module):
    """Channels before, the operation, channels after."""

    def __init__(self, operation, before: nn.Module, after: nn.Module, **more: nn.Module) -> None:
        super().__init__()
        self.operation, self.before, self.after = operation, before, after
        for name, module in more.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.after(self.operation(self, self.before(x)))


def overwrite(m, x):
    y = torch.empty_like(x)
    y[..., :2] = x[..., 4:]
    y[..., 2:] = x[..., :4].tanh()
    return y


def every_second(m, x):
    y = x.clone()
    y[..., 1::2] = x[..., ::2] * x[..., 1::2]
    return y


def sampled(m, x):
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 3), torch.linspace(-1, 0.5, 3), indexing="ij"), -1)
    return F.grid_sample(x, grid.expand(2, 3, 3, 2), align_corners=False)


def packed_inside(m, x):
    """Bloom's way: one projection viewed as (heads, 3, inside)."""
    q, k, v = m.qkv(x).view(2, 7, 2, 3, 4).unbind(3)
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return m.out(y.transpose(1, 2).reshape(2, 7, 8))


ROW, IMAGE, SEQUENCE = (2, 5), (2, 3, 6, 6), (2, 7, 5)
CASES = {
    # operation, channels before and after, input, log10 of the order
    # The weights that read a constant stretch may be permuted, and for each of the two outputs in its own way.
    "zeros beside channels": (lambda m, x: F.pad(x, (2, 3)), nn.Linear(5, 4), nn.Linear(9, 2), ROW, lf(4) + 2 * lf(2, 3)),
    "one zero on each side": (lambda m, x: F.pad(x, (1, 1)), nn.Linear(5, 4), nn.Linear(6, 2), ROW, lf(4)),
    "ones on one side": (lambda m, x: F.pad(x, (3, 0), value=1.0), nn.Linear(5, 4), nn.Linear(7, 2), ROW, lf(4) + 2 * lf(3)),
    "channels taken away": (lambda m, x: F.pad(x, (-2, 0)), nn.Linear(5, 6), nn.Linear(4, 2), ROW, lf(2, 4)),
    "interleaved gate": (lambda m, x: x[..., ::2] * x[..., 1::2].sigmoid(), nn.Linear(5, 8), nn.Linear(4, 2), ROW, lf(4)),
    "every third of eight": (lambda m, x: x[..., ::3], nn.Linear(5, 8), nn.Linear(3, 2), ROW, 0.0),
    "an empty slice": (lambda m, x: torch.cat([x[..., :0], x, x[..., 6:]], -1), nn.Linear(5, 6), nn.Linear(6, 2), ROW, lf(6)),
    "written into an empty tensor": (overwrite, nn.Linear(5, 6), nn.Linear(6, 2), ROW, lf(4, 2)),
    "every second overwritten": (every_second, nn.Linear(5, 8), nn.Linear(8, 2), ROW, lf(4)),
    "largest": (lambda m, x: x.max(-1, keepdim=True).values * x, nn.Linear(5, 6), nn.Linear(6, 2), ROW, lf(6)),
    "middle": (lambda m, x: x - x.median(-1, keepdim=True).values, nn.Linear(5, 7), nn.Linear(7, 2), ROW, lf(7)),
    "which is largest, as a number": (
        lambda m, x: x * x.max(-1, keepdim=True).indices, nn.Linear(5, 6), nn.Linear(6, 2), ROW, 0.0,
    ),
    "Fourier over positions": (lambda m, x: torch.fft.fft(x, dim=1).real, nn.Linear(5, 6), nn.Linear(6, 2), SEQUENCE, lf(6)),
    "Fourier over channels": (lambda m, x: torch.fft.rfft(x, dim=-1).abs(), nn.Linear(5, 6), nn.Linear(4, 2), SEQUENCE, 0.0),
    "pairs as complex numbers": (
        lambda m, x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (3, 2))) * torch.tensor(1j)).flatten(-2),
        nn.Linear(5, 6), nn.Linear(6, 2), ROW, lf(3),
    ),
    "instance norm": (lambda m, x: F.instance_norm(x), nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1), IMAGE, lf(6)),
    "statistics of the batch": (
        lambda m, x: F.batch_norm(x, None, None, training=True), nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1), IMAGE, lf(6),
    ),
    "grid sampling": (sampled, nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1), IMAGE, lf(6)),
    "windows": (lambda m, x: x.unfold(2, 3, 2).mean(-1), nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1), IMAGE, lf(6)),
    "distances": (lambda m, x: torch.cdist(x, x), nn.Linear(5, 6), nn.Identity(), SEQUENCE, lf(6)),
    "a diagonal of channels": (
        lambda m, x: torch.einsum("bi,bj->bij", x, m.b(x)).diagonal(dim1=1, dim2=2), nn.Linear(5, 6), nn.Linear(6, 2), ROW, lf(6),
    ),
    "a shifted diagonal": (
        lambda m, x: torch.einsum("bi,bj->bij", x, m.b(x)).diagonal(1, 1, 2), nn.Linear(5, 6), nn.Linear(5, 2), ROW, 0.0,
    ),
    "a form of two vectors": (lambda m, x: m.bilinear(x, x), nn.Linear(5, 6), nn.Linear(4, 2), ROW, lf(6, 4)),
    "heads, then query, key and value": (packed_inside, nn.Linear(5, 8), nn.Linear(8, 2), SEQUENCE, lf(8, 8, 2, 4, 4, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_order(case):
    operation, before, after, shape, expected = CASES[case]
    torch.manual_seed(0)
    more = {"b": nn.Linear(6, 6), "bilinear": nn.Bilinear(6, 6, 4), "qkv": nn.Linear(8, 24), "out": nn.Linear(8, 8)}
    symmetry = discover_symmetry(Around(operation, before, after, **more), (torch.randn(shape),))
    assert not symmetry.unknown_ops
    assert symmetry.proof.passed
    assert not any(note.startswith("defect") for note in symmetry.notes)
    assert symmetry.log10_order() == pytest.approx(expected, abs=1e-9)


def test_padding_is_a_promise_about_values():
    """A running sum over padded channels is not constant where the padding was: no factor may be found there."""
    model = Around(lambda m, x: F.pad(x, (0, 3)).cumsum(-1), nn.Linear(5, 4), nn.Linear(7, 2))
    symmetry = discover_symmetry(model, (torch.randn(ROW),))
    assert symmetry.proof.passed
    assert not symmetry.groups
    assert not any(note.startswith("defect") for note in symmetry.notes)


def test_entries_addressed_in_memory_have_no_rule():
    model = Around(lambda m, x: torch.as_strided(x, (2, 5), (6, 1), 1), nn.Linear(5, 6), nn.Linear(5, 2))
    symmetry = discover_symmetry(model, (torch.randn(ROW),))
    assert not symmetry.groups
    assert [name.split(" ")[0] for name in symmetry.unknown_ops] == ["as_strided"]


def test_a_frozen_batch_norm_is_tested_with_positive_variances():
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)
            for name in ("scale", "shift", "mean", "spread"):
                self.register_buffer(name, torch.rand(6) + 0.5)

        def forward(self, x):
            scale = self.scale.reshape(1, -1, 1, 1) * (self.spread.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
            return self.head(self.conv(x) * scale + self.shift.reshape(1, -1, 1, 1) - self.mean.reshape(1, -1, 1, 1) * scale)

    symmetry = discover_symmetry(Frozen(), (torch.randn(IMAGE),))
    assert symmetry.proof.passed
    assert symmetry.log10_order() == pytest.approx(lf(6))
    (group,) = symmetry.groups.values()
    assert {"conv.weight", "scale", "shift", "mean", "spread", "head.weight"} <= {member.tensor for member in group.members}


def test_sizes_known_only_at_run_time_are_named():
    model = Around(lambda m, x: x[x.sum(-1).abs() > 0], nn.Linear(5, 6), nn.Linear(6, 2))
    with pytest.raises(WorkbenchError, match="depends on the values"):
        discover_symmetry(model, (torch.randn(ROW),))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_of_rows_keeps_the_rows_and_frees_their_entries(mode):
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.EmbeddingBag(9, 4, mode=mode), nn.Linear(4, 3)

        def forward(self, words, offsets):
            return self.out(self.table(words, offsets).relu())

    found = discover_symmetry(Bags(), (torch.randint(0, 9, (7,)), torch.tensor([0, 3])), scales=True, signs=True)
    assert [(group.size, {m.tensor: m.axis for m in group.members}) for group in found.groups.values()] == [
        (4, {"table.weight": 1, "out.weight": 1})
    ]
    assert (found.scale_dimension, found.sign_bits) == (4, 0)
    assert not found.unknown_ops
    assert found.proof.passed
    assert {(pin.tensor, pin.axis) for pin in found.pinned} >= {("table.weight", 0)}
