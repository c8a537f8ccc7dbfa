"""Group laws of elements, and the laws of applying them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.errors import WorkbenchError
from workbench.states import fingerprint
from workbench.symmetry import Element, Symmetry, discover_symmetry
from workbench.symmetry.layout import Leaf, Product, Sum, blocks


class Grouped(nn.Module):
    """Grouped convolution, GroupNorm and concatenation: dependent factors and sums in one net."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3)
        self.b = nn.Conv2d(8, 12, 3, groups=2)
        self.norm = nn.GroupNorm(2, 12)
        self.c = nn.Conv2d(12, 4, 1)
        self.bn = nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * 9, 5)

    def forward(self, x):
        y = self.norm(self.b(self.a(x).relu()))
        y = torch.cat([y, self.c(y)], 1)
        return self.head(self.bn(y).relu().flatten(1))


@pytest.fixture(scope="module")
def found() -> tuple[nn.Module, Symmetry]:
    model = Grouped()
    return model, discover_symmetry(model, (torch.randn(2, 3, 7, 7),))


def same(a, b) -> bool:
    return all(torch.equal(a[k], b[k]) for k in a) and a.keys() == b.keys()


def test_dependent_factors_are_found(found):
    _, symmetry = found
    sizes = sorted((g.size, g.over_sizes) for g in symmetry.groups.values())
    assert sizes == [(2, ()), (4, ()), (4, (2,)), (6, (2,))]


@pytest.mark.parametrize("seed", range(4))
def test_action_inverse_and_composition(found, seed):
    model, symmetry = found
    state = model.state_dict()
    g, h = symmetry.sample(seed), symmetry.sample(seed + 100)
    assert same(symmetry.apply(g @ h, state), symmetry.apply(g, symmetry.apply(h, state)))
    assert same(symmetry.apply(g.inverse(), symmetry.apply(g, state)), state)
    assert g @ g.inverse() == symmetry.identity() == g.inverse() @ g
    assert not same(symmetry.apply(g, state), state)  # the control: a random element does move something


def test_apply_leaves_the_input_alone_and_shares_no_memory(found):
    model, symmetry = found
    state = {k: v.clone() for k, v in model.state_dict().items()}
    before = fingerprint(state)
    moved = symmetry.apply(symmetry.sample(0), state)
    for tensor in moved.values():
        tensor.zero_()
    assert fingerprint(state) == before
    assert set(moved) == set(state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_is_kept_and_entries_are_only_moved(found, dtype):
    model, symmetry = found
    state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in model.state_dict().items()}
    moved = symmetry.apply(symmetry.sample(1), state)
    for name, tensor in state.items():
        assert moved[name].dtype == tensor.dtype
        assert torch.equal(moved[name].flatten().sort().values, tensor.flatten().sort().values)


def test_nan_stays_a_single_nan(found):
    """Index form moves a NaN; a matrix product would spread it over its row (scipy issue 14545 and kin)."""
    model, symmetry = found
    state = {k: v.clone() for k, v in model.state_dict().items()}
    state["a.weight"][0, 0, 0, 0] = float("nan")
    moved = symmetry.apply(symmetry.sample(2), state)
    assert sum(int(t.isnan().sum()) for t in moved.values()) == 1


def test_save_and_load(found, tmp_path):
    model, symmetry = found
    loaded = Symmetry.load(symmetry.save(tmp_path / "s.json"))
    assert loaded.groups == symmetry.groups
    assert loaded.proof == symmetry.proof
    assert loaded.pinned == symmetry.pinned
    g = symmetry.sample(3)
    assert same(loaded.apply(g, model.state_dict()), symmetry.apply(g, model.state_dict()))


def test_load_refuses_other_files(tmp_path):
    for text in ("{}", "not json", "[1]"):
        path = tmp_path / "x.json"
        path.write_text(text)
        with pytest.raises(WorkbenchError, match=r"Symmetry\.save"):
            Symmetry.load(path)


def test_every_key_is_accounted_for_before_work(found):
    """git-re-basin issue 10: a key that the specification forgot is an error that names it, never a silent omission."""
    model, symmetry = found
    state = dict(model.state_dict())
    assert set(symmetry.tensors) == set(state)
    state["extra.weight"] = torch.zeros(3)
    del state["head.bias"]
    with pytest.raises(WorkbenchError, match=r"unknown: extra\.weight; missing: head\.bias"):
        symmetry.apply(symmetry.identity(), state)


def test_nested_dependence_composes():
    """d over (r, G) with r itself over G: destination coordinates at every level."""
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes):
        rows = [torch.randperm(sizes[-1], generator=generator) for _ in range(int(torch.tensor(sizes[:-1]).prod()))]
        return torch.stack(rows).reshape(sizes)

    over = {"r": ("G",), "d": ("r", "G")}
    g, h = (Element({"G": draw(3), "r": draw(3, 2), "d": draw(2, 3, 4)}, over) for _ in range(2))
    axes = (Product((Leaf("G", 3), Leaf("r", 2), Leaf("d", 4))), Leaf(None, 2))
    w = torch.randn(24, 2)
    assert torch.equal((g @ h).apply_to_tensor(w, axes), g.apply_to_tensor(h.apply_to_tensor(w, axes), axes))
    assert torch.equal(g.inverse().apply_to_tensor(g.apply_to_tensor(w, axes), axes), w)


def test_blocks_cover_every_entry_once():
    axes = (Sum((Leaf("a", 2), Product((Leaf("b", 3), Leaf(None, 4))))), Leaf("c", 5))
    tensor = torch.zeros(14, 5)
    for block in blocks(tensor, axes):
        block.view.add_(1)
        assert len(block.labels) == block.view.dim() == len(block.origin)
    assert bool((tensor == 1).all())


def test_not_a_permutation_is_refused():
    with pytest.raises(WorkbenchError, match="not a permutation"):
        Element({"P": torch.tensor([0, 0, 2])})
