"""Laws that every registered matcher keeps: plain, convolutional with BatchNorm, residual, with heads, with signs."""

import threading

import pytest
import torch
from benchmarks.factored_models import Decoder, Encoder
from torch import nn

from workbench.errors import Cancelled
from workbench.matching import MANY_MATCHERS, MATCHERS, MatchingProblem, SinkhornMatching, StraightThrough, align, align_many
from workbench.matching.matcher import matcher_needs
from workbench.states import fingerprint
from workbench.symmetry import discover_symmetry
from workbench.tasks import Task

CONTROLS = {"identity", "random"}
# Slow by nature: a few steps are enough for a law.
QUICK = {
    "straight-through": lambda: StraightThrough(epochs=2, batch_size=8),
    "sinkhorn": lambda: SinkhornMatching(steps=6, patience=6),
    "sinkhorn, midpoint": lambda: SinkhornMatching(cost="midpoint", steps=4, batch_size=8),
    "sinkhorn, random points": lambda: SinkhornMatching(cost="random", steps=4, batch_size=8),
}


def quick(name):
    return QUICK[name]() if name in QUICK else MATCHERS[name]()


class Plain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 7))

    def example(self):
        return (torch.randn(24, 6, generator=torch.Generator().manual_seed(3)),)


class Convolutional(nn.Sequential):
    def __init__(self):
        super().__init__(
            *(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
            *(nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 7)),
        )

    def example(self):
        return (torch.randn(24, 2, 4, 4, generator=torch.Generator().manual_seed(3)),)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 7)
        self.inner = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.outer = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x):
        x = self.stem(x)
        for inner, outer in zip(self.inner, self.outer, strict=True):
            x = x + outer(torch.relu(inner(x)))
        return self.head(x)

    def example(self):
        return (torch.randn(24, 6, generator=torch.Generator().manual_seed(3)),)


class Odd(nn.Sequential):
    """Units that may be negated."""

    def __init__(self):
        super().__init__(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 7))

    def example(self):
        return (torch.randn(24, 6, generator=torch.Generator().manual_seed(3)),)


class Pooled(nn.Module):
    """A token model that answers once per example, so that a task may judge it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).mean(1)

    def example(self):
        given = self.inner.example()[0]
        generator = torch.Generator().manual_seed(3)
        if given.is_floating_point():
            return (torch.randn(24, *given.shape[1:], generator=generator),)
        return (torch.randint(int(given.max()), (24, *given.shape[1:]), generator=generator),)


MODELS = {
    "plain": Plain,
    "convolutional": Convolutional,
    "residual": Residual,
    "odd": Odd,
    "multi-head": lambda: Pooled(Encoder()),
    "grouped-query, rotary": lambda: Pooled(Decoder()),
}


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    model = MODELS[request.param]().eval()
    symmetry = discover_symmetry(model, model.example(), signs=request.param == "odd")
    states = [drawn(model, seed) for seed in (0, 1)]
    (x,) = model.example()
    with torch.no_grad():
        outputs = model(x).flatten(1)
    targets = torch.randint(outputs.shape[-1], (len(x),), generator=torch.Generator().manual_seed(4))
    return model, symmetry, states, Task("made up", splits={"train": (x, targets)})


def drawn(model, seed, dtype=torch.float32):
    """Random weights of the size of trained ones; variances are positive, counts stay."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in model.state_dict().items():
        scale = tensor[0].numel() ** -0.5 if tensor.dim() > 1 else 1.0
        values = scale * torch.randn(tensor.shape, generator=generator).to(dtype)
        values = values.abs() + 0.5 if name.endswith("running_var") else values
        state[name] = values if tensor.is_floating_point() else tensor.clone()
    return state


NAMES = sorted({*MATCHERS, *QUICK})


@pytest.mark.parametrize("name", NAMES)
def test_the_function_is_kept_and_nothing_is_touched(case, name):
    model, symmetry, (a, b), task = case
    before = [fingerprint(state) for state in (a, b, model.state_dict(), {"x": task.split("train")[0]})]
    flags = [p.requires_grad for p in model.parameters()]
    random = torch.get_rng_state()
    found = align(symmetry, a, b, quick(name), model=model, task=task)
    assert found.preservation.passed
    assert found.preservation.max_abs_change < 1e-9 * found.preservation.scale
    assert found.objective == pytest.approx(MatchingProblem(symmetry, a, b).objective(found.element), rel=1e-9, abs=1e-9)
    assert [fingerprint(s) for s in (a, b, model.state_dict(), {"x": task.split("train")[0]})] == before
    assert [p.requires_grad for p in model.parameters()] == flags
    assert not model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(found.aligned[n].dtype == t.dtype and found.aligned[n].device == t.device for n, t in b.items())
    assert (found.data_used == "no data used") is (matcher_needs(quick(name)) == "nothing")
    if name in CONTROLS:
        return
    assert found.distance_after < found.distance_before or matcher_needs(quick(name)) != "nothing" or name == "spectral"


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_one_answer_alone_or_in_threads(case, name):
    model, symmetry, (a, b), task = case
    alone = align(symmetry, a, b, quick(name), seed=3, model=model, task=task)
    answers = {}

    def run(number):
        torch.manual_seed(number)  # the global generator must not matter
        answers[number] = align(symmetry, a, b, quick(name), seed=3, model=model, task=task)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.element for answer in answers.values()] == [alone.element] * 2
    assert all(answer.objective == alone.objective for answer in answers.values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_the_dtype_is_kept(name, dtype):
    model = Convolutional().eval()
    symmetry = discover_symmetry(model, model.example())
    (x,) = model.example()
    task = Task("made up", splits={"train": (x, torch.arange(24) % 7)})
    a, b = (drawn(model, seed, dtype) for seed in (0, 1))
    found = align(symmetry, a, b, quick(name), model=model, task=task)
    assert {t.dtype for t in found.aligned.values() if t.is_floating_point()} == {dtype}
    assert sorted(found.aligned["0.weight"].flatten().tolist()) == sorted(b["0.weight"].flatten().tolist())


@pytest.mark.parametrize("steps", [1, 2, 4, 9])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in CONTROLS])
def test_cancelling_keeps_the_best_so_far(case, name, steps):
    model, symmetry, (a, b), task = case
    seen = []

    def stop(step):
        seen.append(step)
        if len(seen) >= steps:
            raise Cancelled

    found = align(symmetry, a, b, quick(name), model=model, task=task, progress=stop)
    assert found.preservation.passed
    if len(seen) >= steps:
        assert found.cancelled
        assert any("cancelled" in note for note in found.notes)
        assert len(seen) == steps
    else:
        assert not found.cancelled


@pytest.mark.parametrize("name", ["weights", "frank-wolfe", "sinkhorn"])
def test_going_on_from_an_answer_does_not_lose_it(case, name):
    """By weights alone, an answer that is handed over is where the search begins; the control begins elsewhere."""
    _, symmetry, (a, b), _ = case
    first = align(symmetry, a, b, "weights", seed=1)
    after = align(symmetry, a, b, quick(name), seed=2, start=first)
    assert after.objective >= first.objective - 1e-9 * abs(first.objective)
    assert align(symmetry, a, b, "random", seed=2).objective < first.objective


@pytest.mark.parametrize("name", [n for n in NAMES if n not in CONTROLS and matcher_needs(quick(n)) != "labels"])
def test_identical_models_stay_where_they_are(case, name):
    model, symmetry, (a, _), task = case
    found = align(symmetry, a, a, quick(name), model=model, task=task)
    assert found.element.is_identity
    assert found.distance_after == 0


@pytest.mark.parametrize("name", list(MANY_MATCHERS))
def test_many_models(case, name):
    model, symmetry, (a, b), task = case
    states = [a, b, drawn(model, 2)]
    before = [fingerprint(state) for state in states]
    found = align_many(symmetry, states, name, seed=1, model=model, task=task)
    again = align_many(symmetry, states, name, seed=1)
    assert found.elements == again.elements
    assert all(one.passed for one in found.preservations)
    assert [fingerprint(state) for state in states] == before
    assert fingerprint(found.aligned[0]) == fingerprint(a)
    assert found.cycle_error == 0
    assert found.distances_after.sum() < found.distances_before.sum()
