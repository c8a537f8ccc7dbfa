"""Discovery on small models: pins with reasons, what is left untouched, what cannot be taken, and what the proof catches."""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.errors import WorkbenchError
from workbench.states import fingerprint
from workbench.symmetry import discover_symmetry
from workbench.symmetry.capture import capture
from workbench.symmetry.entries import UNUSED
from workbench.symmetry.group import build
from workbench.symmetry.layout import Leaf
from workbench.symmetry.widened import GraphInFloat64


def orders(*sizes) -> float:
    return sum(math.lgamma(n + 1) for n in sizes) / math.log(10)


class Net(nn.Module):
    def __init__(self, forward, **modules):
        super().__init__()
        self.run = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args):
        return self.run(self, *args)


def residual(m, x):
    x = m.stem(x)
    x = x + m.b(torch.relu(m.a(m.norm(x))))
    return m.head(x)


def squeeze(m, x):
    x = m.act(m.bn(m.conv(x)))
    gate = torch.sigmoid(m.up(F.relu(m.down(x.mean((2, 3))))))
    return m.head((x * gate[:, :, None, None]).mean((2, 3)))


def bessel(m, x):
    y = m.a(x)
    return m.head(torch.relu(m.b(torch.special.bessel_j0(y))))


IMAGE, ROW = (2, 3, 8, 8), (2, 5)


def test_batchnorm_buffers_and_prelu_move_along_and_are_needed():
    """git-re-basin-pytorch issue 5: leaving the buffers or the slopes behind changes the function by far more than rounding."""
    model = Net(
        squeeze,
        conv=nn.Conv2d(3, 6, 3),
        bn=nn.BatchNorm2d(6, affine=False),
        act=nn.PReLU(6),
        down=nn.Linear(6, 4),
        up=nn.Linear(4, 6),
        head=nn.Linear(6, 2),
    )
    symmetry = discover_symmetry(model, (torch.randn(IMAGE),))
    members = {member.tensor for member in symmetry.groups["conv"].members}
    assert {"bn.running_mean", "bn.running_var", "act.weight"} <= members
    assert "bn.num_batches_tracked" not in members
    element = symmetry.sample(1)
    state = {k: torch.rand_like(v) + 0.5 if v.is_floating_point() else v for k, v in model.state_dict().items()}
    moved = symmetry.apply(element, state)
    x = torch.randn(IMAGE)
    model.eval()
    y = torch.func.functional_call(model, state, (x,))
    assert torch.allclose(torch.func.functional_call(model, moved, (x,)), y, atol=1e-5)
    for left_behind in (("bn.running_mean", "bn.running_var"), ("act.weight",)):
        broken = moved | {name: state[name] for name in left_behind}
        assert float((torch.func.functional_call(model, broken, (x,)) - y).abs().max()) > 1e-3


def test_an_operation_without_a_rule_pins_and_is_named():
    net = Net(bessel, a=nn.Linear(5, 6), b=nn.Linear(6, 7), head=nn.Linear(7, 2))
    symmetry = discover_symmetry(net, (torch.randn(ROW),))
    assert symmetry.unknown_ops == {"special_bessel_j0": 1}
    assert list(symmetry.groups) == ["b"]
    reasons = {(p.tensor, p.axis): p.reason for p in symmetry.pinned}
    assert "special_bessel_j0" in reasons["a.weight", 0]
    assert "special_bessel_j0" in reasons["b.weight", 1]
    assert "input" in reasons["a.weight", 1]
    assert "output" in reasons["head.weight", 0]


def test_a_wrong_rule_is_caught_by_the_proof_and_dropped(monkeypatch):
    """The negative control: cumsum treated as element-wise claims a group that does not hold."""
    from workbench.symmetry import rules

    net = Net(lambda m, x: m.head(torch.cumsum(m.a(x), 1)), a=nn.Linear(5, 6), head=nn.Linear(6, 2))
    assert not discover_symmetry(net, (torch.randn(ROW),)).groups
    monkeypatch.setitem(rules.RULES._entries, "cumsum", rules.RULES.entry("relu"))
    symmetry = discover_symmetry(net, (torch.randn(ROW),))
    assert not symmetry.groups
    assert any("defect" in note and "dropped" in note for note in symmetry.notes)


def test_no_factor_comes_with_a_reason():
    symmetry = discover_symmetry(nn.Linear(5, 3), (torch.randn(ROW),))
    assert not symmetry.groups
    assert any("no factor was found" in note for note in symmetry.notes)
    assert len(symmetry.pinned) == 3
    assert symmetry.coverage == 0


def test_unused_parameters_are_listed_and_not_counted():
    net = Net(lambda m, x: m.head(torch.relu(m.a(x))), a=nn.Linear(5, 6), head=nn.Linear(6, 2), spare=nn.Linear(9, 9))
    symmetry = discover_symmetry(net, (torch.randn(ROW),))
    assert symmetry.log10_order() == pytest.approx(orders(6))
    assert symmetry.tensors["spare.weight"].role == UNUSED
    assert any("spare.weight" in note for note in symmetry.notes)


def test_tied_weights_move_once():
    net = Net(lambda m, x: F.linear(torch.tanh(m.a(x)), m.b.weight.t()), a=nn.Linear(5, 6), b=nn.Linear(5, 6))
    net.b.weight = net.a.weight
    symmetry = discover_symmetry(net, (torch.randn(ROW),))
    assert dict(symmetry.aliases) == {"b.weight": "a.weight"}
    assert symmetry.log10_order() == pytest.approx(orders(6))
    moved = symmetry.apply(symmetry.sample(0), net.state_dict())
    assert moved["a.weight"] is moved["b.weight"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_frozen_and_low_precision_models_give_the_same_group(dtype):
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).to(dtype).requires_grad_(False)
    symmetry = discover_symmetry(model, (torch.randn(ROW, dtype=dtype),))
    assert symmetry.log10_order() == pytest.approx(orders(7))
    assert symmetry.proof.passed


def test_the_callers_model_is_untouched():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    ).train()
    model[0].requires_grad_(False)
    flags = [(p.requires_grad, m.training) for m in model.modules() for p in m.parameters(recurse=False)]
    before = fingerprint(model.state_dict())
    generator = torch.random.get_rng_state()
    discover_symmetry(model, (torch.randn(IMAGE, generator=torch.Generator().manual_seed(0)),))
    assert fingerprint(model.state_dict()) == before
    assert [(p.requires_grad, m.training) for m in model.modules() for p in m.parameters(recurse=False)] == flags
    assert torch.equal(torch.random.get_rng_state(), generator)


def test_a_closure_over_the_model_is_seen_through():
    """A copy's closures still read the original's weights; the graph must show them as weights all the same."""

    class Closed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.head = nn.Linear(5, 6), nn.Linear(6, 2)
            self.read = lambda x: self.head(torch.relu(self.a(x)))

        def forward(self, x):
            return self.read(x)

    model = Closed().train()
    symmetry = discover_symmetry(model, (torch.randn(ROW),))
    assert symmetry.log10_order() == pytest.approx(orders(6))
    assert model.training
    assert model.head.training


def test_only_the_outputs_that_matter_pin():
    net = Net(lambda m, x: (m.head(h := torch.relu(m.a(x))), h), a=nn.Linear(5, 6), head=nn.Linear(6, 2))
    assert not discover_symmetry(net, (torch.randn(ROW),)).groups
    assert discover_symmetry(net, (torch.randn(ROW),), outputs=["0"]).log10_order() == pytest.approx(orders(6))
    with pytest.raises(WorkbenchError, match="no output called 'logits'"):
        discover_symmetry(net, (torch.randn(ROW),), outputs=["logits"])


def test_a_model_on_meta_gives_the_group_unproved():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 3))
    symmetry = discover_symmetry(model, (torch.randn(ROW, device="meta"),))
    assert symmetry.log10_order() == pytest.approx(orders(7, 7))
    assert symmetry.proof is None
    assert any("meta" in note for note in symmetry.notes)


def test_errors_teach():
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    with pytest.raises(WorkbenchError, match=r"fails on the example inputs.*\(2, 4\)"):
        discover_symmetry(model, (torch.randn(2, 4),))
    branching = Net(lambda m, x: m.a(x) if float(x.sum()) > 0 else m.a(-x), a=nn.Linear(5, 2))
    with pytest.raises(WorkbenchError, match="could not capture"):
        discover_symmetry(branching, (torch.randn(ROW),))


def test_explain_names_ties_pins_and_the_proof():
    model = Net(residual, stem=nn.Linear(5, 8), norm=nn.LayerNorm(8), a=nn.Linear(8, 6), b=nn.Linear(6, 8), head=nn.Linear(8, 3))
    symmetry = discover_symmetry(model, (torch.randn(ROW),))
    text = symmetry.explain()
    for part in ("stem: 8 units", "b.weight axis 0", "tied by", "addmm in stem", "Pinned", "input x", "kept the function"):
        assert part in text or part == "input x"
    assert "model's input" in symmetry.explain("stem.weight")
    with pytest.raises(WorkbenchError, match="did you mean 'stem'"):
        symmetry.explain("sten")


# -- what a model does to itself and to its inputs


class Restless(nn.Module):
    """Changes its input and a buffer in place, converts types, and runs with a complex intermediate."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        x.add_(1)
        self.calls.add_(1)
        return self.second(self.first(x.float()).relu())


def test_inputs_and_buffers_that_a_model_changes_in_place_are_kept():
    model, x = Restless(), torch.randn(4, 6)
    before = x.clone()
    found = discover_symmetry(model, x)
    assert torch.equal(x, before)
    assert float(model.calls) == 0
    assert {group.size for group in found.groups.values()} == {5}
    assert not any("defect" in note for note in found.notes)
    assert found.proof.passed


def test_models_that_cannot_be_taken_are_named():
    locked = nn.Linear(6, 5)
    locked.guard = threading.Lock()
    with pytest.raises(WorkbenchError, match=r"cannot be copied.*a lock"):
        discover_symmetry(locked, torch.zeros(2, 6))
    lazy = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(WorkbenchError, match=r"'0.weight'.*run the model once"):
        discover_symmetry(lazy, torch.zeros(2, 6))
    assert all(nn.parameter.is_lazy(parameter) for parameter in lazy.parameters())
    with pytest.raises(WorkbenchError, match="complex"):
        discover_symmetry(nn.Linear(6, 5, dtype=torch.complex64), torch.zeros(2, 6, dtype=torch.complex64))
    for wrong in ("mlp", nn.Linear, None):
        with pytest.raises(WorkbenchError, match="The model is a"):
            discover_symmetry(wrong, torch.zeros(2, 6))
    with pytest.raises(WorkbenchError, match="another type"):
        discover_symmetry(nn.Linear(6, 5), torch.zeros(2, 6, dtype=torch.float64))


def test_outputs_of_any_type_and_layers_without_units_are_proved():
    def net(after):
        class Net(nn.Sequential):
            def forward(self, x):
                return after(super().forward(x))

        return Net(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))

    for after in (lambda y: y > 0, lambda y: (y.argmax(-1), y > 1, y), lambda y: torch.view_as_complex(y.unflatten(-1, (2, 2)))):
        found = discover_symmetry(net(after), torch.randn(ROW), scales=True)
        assert [group.size for group in found.groups.values()] == [6]
        assert found.proof.passed
    empty = discover_symmetry(nn.Sequential(nn.Linear(5, 0), nn.Linear(0, 4)), torch.randn(ROW), scales=True)
    assert empty.proof.passed
    assert not empty.linear


def test_inputs_and_outputs_that_cannot_be_meant_are_refused():
    net, x = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4)), torch.randn(ROW)
    with pytest.raises(WorkbenchError, match="No output was named"):
        discover_symmetry(net, x, outputs=[])
    assert discover_symmetry(net, x, outputs="output").groups.keys() == discover_symmetry(net, x).groups.keys()
    with pytest.raises(WorkbenchError, match="to_dense"):
        discover_symmetry(net, x.to_sparse())


def test_running_a_graph_leaves_the_record_that_a_parallel_export_reads_alone(monkeypatch):
    written = []
    monkeypatch.setattr(torch.fx.Interpreter, "_set_current_node", lambda self, node: written.append(node) or nullcontext())
    net, x = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(ROW)
    captured = capture(net, (x,))
    weights = {name: parameter.double() for name, parameter in net.named_parameters()}
    written.clear()
    with torch.no_grad():
        assert torch.allclose(GraphInFloat64(captured, (x.double(),)).run(weights)[0], net(x).double(), atol=1e-6)
    assert written == []
    torch.fx.Interpreter(captured.program.graph_module).run(*net.parameters(), x, enable_io_processing=False)
    assert written  # what torch.fx's own interpreter does


class Masked(nn.Module):
    """Causal attention of two heads, masked with the most negative number there is, as many libraries do."""

    def __init__(self):
        super().__init__()
        self.read, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
        self.qkv, self.back = nn.Linear(8, 24, bias=False), nn.Linear(8, 8)

    def forward(self, x):
        x = self.read(x)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mask = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min).triu(1)
        y = (q @ k.mT + mask).softmax(-1) @ v
        return self.out(x + self.back(y.transpose(1, 2).flatten(2)))


def test_a_huge_mask_does_not_blind_the_proof():
    net, inputs = Masked(), (torch.randn(2, 5, 6),)
    found = discover_symmetry(net, inputs)
    assert found.proof.passed
    assert found.proof.max_relative_error > 1e-30  # a floor of the mask's size would read less
    # the inside of the heads on the query and key rows moved, and on nothing else that it should meet
    wrong = build(
        {
            name: replace(entry, layouts=(Leaf("all", 8), *entry.layouts[1:])) if name == "read.weight" else entry
            for name, entry in found.tensors.items()
        },
        {"all": {"size": 8}},
    )
    verdict = wrong.check(net, inputs)
    assert not verdict.passed
    assert verdict.max_relative_error > 1e-7


def test_an_output_that_is_zero_but_for_rounding_is_no_false_alarm():
    def forward(net, x):
        y = net.second(net.first(x).relu())
        return net.out(y), (y - y.mean(-1, keepdim=True)).sum(-1) * 1e3

    found = discover_symmetry(Net(forward, first=nn.Linear(5, 6), second=nn.Linear(6, 7), out=nn.Linear(7, 3)), (torch.randn(ROW),))
    assert found.log10_order() == pytest.approx(orders(6, 7))
    assert not found.notes
