"""Hostile input to every matcher: values that are not finite, dead layers, one example, other shapes, cancel at every step."""

import pytest
import torch
from test_matcher_laws import CONTROLS, NAMES, Plain, drawn, quick
from torch import nn

from workbench.errors import Cancelled, WorkbenchError
from workbench.matching import MatchingProblem, align, matcher_needs
from workbench.states import fingerprint
from workbench.symmetry import discover_symmetry
from workbench.tasks import Task


@pytest.fixture(scope="module")
def case():
    model = Plain().eval()
    symmetry = discover_symmetry(model, model.example())
    (x,) = model.example()
    return model, symmetry, drawn(model, 0), drawn(model, 1), Task("made up", splits={"train": (x, torch.arange(24) % 7)})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_not_finite_are_named_and_counted(case, name, value):
    model, symmetry, a, b, task = case
    broken = {**b, "2.weight": b["2.weight"].clone()}
    broken["2.weight"][1, 2] = value
    for pair in ((a, broken), (broken, a)):
        with pytest.raises(WorkbenchError, match=r"non-finite values \(2\.weight: 1 of 72\)"):
            align(symmetry, *pair, quick(name), model=model, task=task)


@pytest.mark.parametrize("name", NAMES)
def test_a_dead_layer_moves_nothing_it_need_not(case, name):
    """All weights of a layer are zero in both models: its units are all alike, and the function is kept."""
    model, symmetry, a, b, task = case
    dead = [{**s, "0.weight": torch.zeros_like(s["0.weight"]), "0.bias": torch.zeros_like(s["0.bias"])} for s in (a, b)]
    found = align(symmetry, *dead, quick(name), model=model, task=task)
    assert found.preservation.passed
    assert torch.isfinite(torch.tensor(found.objective))
    gone = [{n: torch.zeros_like(t) for n, t in s.items()} for s in (a, b)]
    nothing = align(symmetry, *gone, quick(name), model=model, task=task)
    assert nothing.distance_after == 0
    assert nothing.element.is_identity or name in ("random",)


@pytest.mark.parametrize("name", NAMES)
def test_one_example(case, name):
    """Enough for a loss; not for how units vary, and then said."""
    model, symmetry, a, b, _ = case
    (x,) = model.example()
    single = Task("one", splits={"train": (x[:1], torch.tensor([3]))})
    if name == "activations":
        with pytest.raises(WorkbenchError, match="two or more"):
            align(symmetry, a, b, quick(name), model=model, task=single)
        return
    assert align(symmetry, a, b, quick(name), model=model, task=single).preservation.passed


@pytest.mark.parametrize("name", NAMES)
def test_other_shapes_and_names_are_refused(case, name):
    model, symmetry, a, b, task = case
    wider = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 7)).state_dict()
    with pytest.raises(WorkbenchError, match=r"shapes differ: 0\.weight"):
        align(symmetry, a, wider, quick(name), model=model, task=task)
    with pytest.raises(WorkbenchError, match="do not hold the same tensors"):
        align(symmetry, a, {f"module.{n}": t for n, t in b.items()}, quick(name), model=model, task=task)
    with pytest.raises(WorkbenchError, match="does not fit the model"):
        align(symmetry, wider, wider, quick(name), model=model, task=task)


@pytest.mark.parametrize("name", ["weights", "straight-through", "sinkhorn, midpoint", "activations", "covariance"])
def test_a_task_of_another_model_is_refused_in_words(case, name):
    model, symmetry, a, b, _ = case
    other = Task("images", splits={"train": (torch.randn(20, 5), torch.arange(20) % 7)})
    with pytest.raises(WorkbenchError, match=r"fails on the inputs of the task 'images'.*got \(2, 5\)"):
        align(symmetry, a, b, quick(name), model=model, task=other)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in CONTROLS])
def test_cancel_at_every_step(case, name):
    """Whatever step it is, what comes back is an element of the group, its figures are its own, and the inputs are untouched."""
    model, symmetry, a, b, task = case
    before = fingerprint(a), fingerprint(b)
    for steps in range(1, 60):
        seen = []

        def stop(step, seen=seen, steps=steps):
            seen.append(step)
            if len(seen) == steps:
                raise Cancelled

        found = align(symmetry, a, b, quick(name), model=model, task=task, progress=stop)
        assert found.objective == pytest.approx(MatchingProblem(symmetry, a, b).objective(found.element), rel=1e-9, abs=1e-9)
        assert (fingerprint(a), fingerprint(b)) == before
        if not found.cancelled:
            assert len(seen) < steps
            break
    else:
        assert matcher_needs(quick(name)) != "nothing" or name == "sinkhorn"
