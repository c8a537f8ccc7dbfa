"""The two ways to run a model in float64 agree where they should, and where they do not the proof takes the export."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.errors import Cancelled
from workbench.symmetry import discover_symmetry
from workbench.symmetry import proof as proofs
from workbench.symmetry.bench import Bench
from workbench.symmetry.capture import capture
from workbench.symmetry.random_weights import noisy, random_weights
from workbench.symmetry.widened import GraphInFloat64, ModuleInFloat64


class Rounded(nn.Module):
    """Casts to lower precisions inside, by keyword, by position and by method."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.one(x).to(torch.float32).tanh().to(dtype=torch.float16).type(torch.bfloat16)
        return self.two((h + torch.zeros(8, dtype=torch.float16)).float().to(x.dtype))


class ByType(nn.Module):
    """Does something else in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.one(x)
        return self.two(h.relu() if h.dtype == torch.float64 else h.tanh())


class Closed(nn.Module):
    """Reads a weight by a closure, which a copy does not follow."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 3)
        self.read = lambda h: torch.nn.functional.linear(h, self.two.weight, self.two.bias)

    def forward(self, x):
        return self.read(self.one(x).relu())


class Remembering(nn.Module):
    """Writes into a plain tensor, which is no buffer and stays in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 3)
        self.memory = torch.zeros(8)

    def forward(self, x):
        return self.two(self.one(x).relu() + self.memory.clone().mul_(2))


class Conv(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


MODELS = {"rounded": (Rounded, (2, 5)), "conv": (Conv, (2, 3, 6, 6)), "recurrent": (Recurrent, (2, 7, 5))}


def bench(model, inputs):
    captured = capture(model, inputs)
    generator = torch.Generator().manual_seed(0)
    weights, wide = random_weights(captured, generator), noisy(inputs, generator)
    found = discover_symmetry(model, inputs)
    return Bench(found, GraphInFloat64(captured, wide), weights, generator, lambda: None), ModuleInFloat64(captured, wide)


@pytest.mark.parametrize("name", MODELS)
def test_module_and_graph_agree_to_the_last_digits(name):
    build, shape = MODELS[name]
    torch.manual_seed(0)
    before, module = bench(build(), (torch.randn(shape),))
    assert before.agrees(module, 1e-13)
    moved = {tensor: weight * (1 + 1e-4) for tensor, weight in before.weights.items()}
    before.weights.update(moved)  # and are not merely both constant
    assert not before.agrees(module, 1e-9)


@pytest.mark.parametrize("build", [ByType, Closed])
def test_a_module_that_does_something_else_in_float64_is_not_run(build):
    torch.manual_seed(0)
    before, module = bench(build(), (torch.randn(2, 5),))
    assert not before.agrees(module, 1e-9)


@pytest.mark.parametrize("build", [Rounded, ByType, Closed, Remembering])
def test_another_batch_size_is_covered_either_way(build):
    torch.manual_seed(0)
    symmetry = discover_symmetry(build(), (torch.randn(2, 5),))
    assert [group.size for group in symmetry.groups.values()] == [8]
    assert symmetry.proof.passed
    assert symmetry.proof.max_relative_error < 1e-12
    assert symmetry.proof.shapes == ("2×5", "3×5")


def test_casts_are_widened_before_and_after_decomposition():
    torch.manual_seed(0)
    model, inputs = Rounded(), (torch.randn(2, 5),)
    generator = torch.Generator().manual_seed(0)
    whole = capture(model, inputs, decompose=False)
    assert any(str(node.target) == "aten.to.dtype" for node in whole.program.graph.nodes)
    weights, wide = random_weights(whole, generator), noisy(inputs, generator)
    with torch.no_grad():
        runners = GraphInFloat64(whole, wide), GraphInFloat64(capture(model, inputs), wide), ModuleInFloat64(whole, wide)
        outputs = [runner.run(weights)[0] for runner in runners]
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=1e-13, atol=1e-13)


class OneMore(nn.Module):
    """Two positions of the hidden layer are fixed for every batch but the first one seen."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.one(x).relu()
        return self.two(h if len(x) == 2 else h * torch.arange(1.0, 9.0))


def test_a_group_of_one_batch_size_only_is_caught():
    symmetry = discover_symmetry(OneMore(), (torch.randn(2, 5),))
    assert not symmetry.groups
    assert any("defect" in note for note in symmetry.notes)


def test_a_cancel_at_the_second_shape_is_not_taken_for_a_shape_the_model_does_not_take(monkeypatch):
    at_second = []
    original = proofs._verdict

    def watched(bench, samples, seed):
        at_second.append(seed)
        return original(bench, samples, seed)

    monkeypatch.setattr(proofs, "_verdict", watched)

    stops = []

    def progress(step):
        if step.stage == "proving by test" and len(at_second) > 1 and not stops:
            stops.append(step)
            raise Cancelled("stop")

    with pytest.raises(Cancelled):
        discover_symmetry(Conv(), (torch.randn(2, 3, 6, 6),), progress=progress)
    assert len(stops) == 1
