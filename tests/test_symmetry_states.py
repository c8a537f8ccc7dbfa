"""The group belongs to the code, not to the state of a model: frozen, training, low precision, on meta; nothing in it changes."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.errors import WorkbenchError
from workbench.states import fingerprint
from workbench.symmetry import Symmetry, discover_symmetry
from workbench.symmetry.entries import FIXED
from workbench.symmetry.layout import Leaf

FLOATS = (torch.float16, torch.bfloat16, torch.float64)


class Convolutions(nn.Module):
    """Batch norm, group norm, dropout and a buffer of one's own."""

    def __init__(self):
        super().__init__()
        self.a, self.bn = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.b, self.gn = nn.Conv2d(6, 8, 3, groups=2, padding=1), nn.GroupNorm(2, 8)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 2)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x):
        x = torch.relu(self.bn(self.a(x)))
        x = self.drop(torch.relu(self.gn(self.b(x)))).mean((2, 3))
        return self.head(x + self.shift)


class Attention(nn.Module):
    """Embeddings tied to the output, two heads with dropout in the attention, and a gated layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.mha = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.gate, self.up, self.down = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        y = self.norm(x)
        x = x + self.mha(y, y, y, need_weights=False)[0]
        return self.head(x + self.down(F.silu(self.gate(x)) * self.up(x)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(5, 4, num_layers=2, dropout=0.3, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


class Mixture(nn.Module):
    """Experts chosen by their router, held as modules: whole branches change places."""

    def __init__(self):
        super().__init__()
        self.read, self.router, self.out = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 6)) for _ in range(3))

    def forward(self, x):
        x = self.read(x)
        p = self.router(x).softmax(-1)
        return self.out(x + sum(p[:, e, None] * expert(x) for e, expert in enumerate(self.experts)))


def generator():
    return torch.Generator().manual_seed(3)


MODELS = {
    "convolutions": (Convolutions, torch.randn(2, 3, 8, 8, generator=generator())),
    "attention": (Attention, torch.randint(11, (2, 7), generator=generator())),
    "recurrence": (Recurrent, torch.randn(2, 4, 5, generator=generator())),
    "mixture": (Mixture, torch.randn(2, 5, generator=generator())),
}


def group_of(symmetry: Symmetry):
    """All that makes two symmetries the same group."""
    return (
        {name: (g.size, g.over, g.over_sizes, g.kind) for name, g in symmetry.groups.items()},
        {name: (e.shape, e.layouts, e.role, e.orders) for name, e in symmetry.tensors.items()},
        symmetry.stacks,
        dict(symmetry.aliases),
        {(p.tensor, p.axis) for p in symmetry.pinned},
    )


def snapshot(model: nn.Module):
    """All that a caller could miss: values, memory, kinds, flags, modes, hooks, gradients and names."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return (
        [(name, id(t), t.data_ptr(), t.dtype, t.device, t.requires_grad, t.grad is None, t._version) for name, t in tensors],
        [(name, module.training, len(module._forward_hooks), sorted(vars(module))) for name, module in model.named_modules()],
        None if any(t.is_meta for _, t in tensors) else fingerprint(model.state_dict()),
    )


@pytest.fixture(scope="module")
def plain():
    """Name -> the group of the model as built: float32, evaluating, all parameters trained."""
    groups = {}
    for name, (build, x) in MODELS.items():
        symmetry = discover_symmetry(build().eval(), (x,))
        assert symmetry.proof.passed
        assert symmetry.groups
        groups[name] = group_of(symmetry)
    return groups


def build_in(state, name):
    build, x = MODELS[name]
    model = build().eval()
    if state == "training":
        model.train()
    elif state == "some in training":
        next(iter(model.children())).train()
    elif state == "frozen":
        model.requires_grad_(False)
    elif state == "half frozen":
        for parameter in list(model.parameters())[::2]:
            parameter.requires_grad_(False)
    elif state == "with gradients":
        if x.is_floating_point():
            x = x.clone().requires_grad_(True)
        model(x).sum().backward()
    elif state in FLOATS:
        model.to(state)
        x = x.to(state) if x.is_floating_point() else x
    return model, x


STATES = ("training", "some in training", "frozen", "half frozen", "with gradients", *FLOATS)


@pytest.mark.parametrize("state", STATES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_group_is_the_same_and_the_model_is_as_it_was(name, state, plain):
    model, x = build_in(state, name)
    before, input_before, random = snapshot(model), x.detach().clone(), torch.random.get_rng_state()
    settings = torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    symmetry = discover_symmetry(model, (x,))
    assert snapshot(model) == before
    assert torch.equal(x, input_before)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert (torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()) == settings
    assert group_of(symmetry) == plain[name]
    assert symmetry.proof.passed
    assert not any("defect" in note for note in symmetry.notes)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_meta_has_the_same_group_and_says_that_it_is_unproved(name, plain):
    build, x = MODELS[name]
    with torch.device("meta"):
        model = build().train()
    before = snapshot(model)
    symmetry = discover_symmetry(model, (x.to("meta"),))
    assert snapshot(model) == before
    assert group_of(symmetry) == plain[name]
    assert symmetry.proof is None
    assert any("meta" in note for note in symmetry.notes)


class Shifted(nn.Module):
    """Adds a constant made by the forward to 6 units."""

    def __init__(self, constant):
        super().__init__()
        self.a, self.b, self.constant = nn.Linear(5, 6), nn.Linear(6, 2), constant

    def forward(self, x):
        return self.b(torch.relu(self.a(x) + self.constant(x)))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_equal_constants_made_on_the_way_pin_nothing(device):
    model = Shifted(lambda x: torch.zeros(6, device=x.device)).to(device)
    assert [group.size for group in discover_symmetry(model, (torch.randn(2, 5, device=device),)).groups.values()] == [6]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_constants_that_differ_pin_on_any_device(device):
    model = Shifted(lambda x: torch.arange(6.0, device=x.device)).to(device)
    symmetry = discover_symmetry(model, (torch.randn(2, 5, device=device),))
    assert not symmetry.groups
    assert any(p.tensor == "a.weight" and p.axis == 0 and "arange" in p.reason for p in symmetry.pinned)


def test_the_snapshot_sees_what_it_should():
    """The control: every kind of change is noticed."""
    for change in (
        lambda m: m.train(),
        lambda m: m.drop.train(),
        lambda m: m.half(),
        lambda m: m.a.weight.requires_grad_(False),
        lambda m: m.a.weight.data.add_(1),
        lambda m: m.shift.add_(1),
        lambda m: m.register_forward_hook(lambda *_: None),
        lambda m: setattr(m, "extra", 1),
        lambda m: setattr(m.a, "weight", nn.Parameter(m.a.weight.detach().clone())),
    ):
        model = Convolutions().eval()
        before = snapshot(model)
        assert snapshot(model) == before
        change(model)
        assert snapshot(model) != before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_claim_is_rejected_on_a_model_of_low_precision_too(name, dtype):
    """The proof does not hide behind rounding: it is run in float64 whatever the model is held in."""
    model, x = build_in(dtype, name)
    symmetry = discover_symmetry(model, (x,))
    assert symmetry.proof.max_relative_error < 1e-12
    tensor = {"convolutions": "b.weight", "attention": "mha.in_proj_weight", "recurrence": "rnn.weight_hh_l0"}.get(
        name, "out.weight"
    )
    entry = symmetry.tensors[tensor]
    still = replace(entry, layouts=tuple(Leaf(None, n) for n in entry.shape), role=FIXED)
    verdict = replace(symmetry, tensors={**symmetry.tensors, tensor: still}).check(model, (x,))
    assert not verdict.passed
    assert verdict.max_relative_error > 1e-7


def test_batch_statistics_in_training_are_not_updated():
    model, x = Convolutions().train(), MODELS["convolutions"][1]
    before = copy.deepcopy(model.state_dict())
    discover_symmetry(model, (x,))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert int(model.bn.num_batches_tracked) == 0
    model(x)
    assert int(model.bn.num_batches_tracked) == 1


def test_a_failure_leaves_the_model_as_it_was():
    model = Convolutions().train()
    before = snapshot(model)
    for wrong in (torch.randn(2, 4, 8, 8), torch.randn(2, 3)):
        with pytest.raises(WorkbenchError):
            discover_symmetry(model, (wrong,))
        assert snapshot(model) == before


class Ordered(nn.Module):
    """Cumulative sums read every layer in its order."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.b(self.a(x).cumsum(-1))


class Constant(nn.Module):
    """Ignores its weights."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(5, 6)

    def forward(self, x):
        return x * 2


NONE = {
    "one layer between input and output": (nn.Linear(5, 3), torch.randn(2, 5)),
    "every order is read": (Ordered(), torch.randn(2, 5)),
    "one unit to a layer": (nn.Sequential(nn.Linear(5, 1), nn.ReLU(), nn.Linear(1, 3)), torch.randn(2, 5)),
    "no parameters": (nn.Sequential(nn.ReLU()), torch.randn(2, 5)),
    "parameters that are not used": (Constant(), torch.randn(2, 5)),
}


@pytest.mark.parametrize("state", ["plain", "frozen", "training", "meta", torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NONE)
def test_no_factor_at_all_always_comes_with_a_reason(name, state):
    model, x = NONE[name]
    model = copy.deepcopy(model).eval()
    if state == "frozen":
        model.requires_grad_(False)
    elif state == "training":
        model.train()
    elif state != "plain":
        model, x = model.to(state), x.to(state)
    symmetry = discover_symmetry(model, (x,))
    assert not symmetry.groups
    assert symmetry.coverage == 0
    assert symmetry.log10_order() == 0
    assert any("no factor was found" in note for note in symmetry.notes)
    assert "no factor was found" in symmetry.explain()
    used = {name for name, entry in symmetry.tensors.items() if entry.role == FIXED and max(entry.shape, default=1) > 1}
    assert {p.tensor for p in symmetry.pinned if p.reason} >= used
    if name == "parameters that are not used":
        assert any("spare.weight" in note for note in symmetry.notes)
