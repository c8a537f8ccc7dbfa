"""Evaluation and profiles: sums over examples, untouched models, the guard against randomness, streaming, cancel."""

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from workbench.errors import Cancelled, WorkbenchError
from workbench.evaluation import Evaluator, evaluate, require_deterministic
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.states import fingerprint
from workbench.tasks import Task


@pytest.fixture
def small():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(103, 6, generator=generator), torch.randint(0, 3, (103,), generator=generator)
    return Task("small", {"train": (x[:70], y[:70]), "test": (x[70:], y[70:])})


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def drawn(seed):
    model = net()
    generator = torch.Generator().manual_seed(seed)
    return {
        n: torch.rand(t.shape, generator=generator) + 0.1 if t.is_floating_point() else torch.tensor(seed)
        for n, t in model.state_dict().items()
    }


def test_mean_over_examples_not_over_batches(small):
    model, state = net(), drawn(1)
    found = [evaluate(model, state, small, batch_size=size) for size in (None, 1, 7, 1000)]
    reference = net().eval()
    reference.load_state_dict(state)
    x, y = small.split("test")
    expected = float(F.cross_entropy(reference(x).double(), y).detach())
    for one in found:
        assert one["test", "loss"] == pytest.approx(expected, rel=1e-6)
        assert one["test", "accuracy"] == pytest.approx(float((reference(x).argmax(1) == y).double().mean()))
    biased = np.mean([float(F.cross_entropy(reference(a), b).detach()) for a, b in zip(x.split(7), y.split(7), strict=True)])
    assert biased != pytest.approx(expected, rel=1e-6), "control: the mean of batch means is another number"


def test_the_model_and_the_state_are_untouched(small):
    model, state = net(), drawn(1)
    model.requires_grad_(False)
    before = fingerprint(model.state_dict()), fingerprint(state)
    evaluate(model, state, small)
    profile_path(LinearPath(state, drawn(2)), model, small, points=3)
    assert (fingerprint(model.state_dict()), fingerprint(state)) == before
    assert all(module.training for module in model.modules())
    assert not any(p.requires_grad for p in model.parameters())


def test_threads_do_not_disturb_each_other(small):
    model, states = net(), [drawn(seed) for seed in range(6)]
    alone = [evaluate(model, state, small) for state in states]
    found: list = [None] * 6

    def work(i):
        found[i] = [evaluate(model, states[i], small) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each == alone[i] for i in range(6) for each in found[i])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(small, dtype):
    state = {n: t.to(dtype) if t.is_floating_point() else t for n, t in drawn(1).items()}
    exact = evaluate(net(), drawn(1), small)["test", "loss"]
    assert evaluate(net(), state, small)["test", "loss"] == pytest.approx(exact, rel=3e-2)


def test_a_state_that_does_not_fit_is_refused(small):
    state = drawn(1)
    del state["4.bias"]
    with pytest.raises(WorkbenchError, match=r"missing: 4\.bias; unknown: fc\.bias"):
        evaluate(net(), {**state, "fc.bias": torch.zeros(3)}, small)
    with pytest.raises(WorkbenchError, match="did you mean 'train'"):
        evaluate(net(), drawn(1), small, splits=["trian"])


class AlwaysDropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5)


class StaysTraining(nn.Dropout):
    def train(self, mode=True):
        return super().train(True)


@pytest.mark.parametrize(
    ("culprit", "said"),
    [
        (AlwaysDropout(), "module '1' (AlwaysDropout): two runs on the same inputs gave different outputs"),
        (StaysTraining(), "module '1' (StaysTraining): it stays in training mode"),
        (nn.BatchNorm1d(8, track_running_stats=False), "module '1' (BatchNorm1d): it keeps no running statistics"),
    ],
)
def test_a_model_that_is_not_deterministic_is_refused_by_name(culprit, said):
    model = nn.Sequential(nn.Linear(6, 8), culprit, nn.Linear(8, 3))
    with pytest.raises(WorkbenchError) as error:
        require_deterministic(model, torch.randn(5, 6))
    assert said in str(error.value)
    assert "Next:" in str(error.value)


def test_a_deterministic_model_in_train_mode_passes():
    require_deterministic(net().train(), torch.randn(5, 6))


def test_profile(small):
    a, b = drawn(1), drawn(2)
    seen = []
    found = profile_path(LinearPath(a, b), net(), small, points=5, progress=seen.append)
    assert found["loss"].dims == ("split", "t")
    assert found["t"].values.tolist() == [0, 0.25, 0.5, 0.75, 1]
    for t, state in ((0.0, a), (1.0, b), (0.5, LinearPath(a, b)(0.5))):
        exact = evaluate(net(), state, small)
        for (split, metric), value in exact.items():
            assert float(found[metric].sel(split=split, t=t)) == value
    assert (found["loss"].attrs["units"], found["loss"].attrs["better"]) == ("nats", "lower")
    assert (found["accuracy"].attrs["units"], found["accuracy"].attrs["better"]) == ("fraction", "higher")
    assert (found.attrs["task"], found.attrs["calibration"], found.attrs["non_finite"]) == ("small", "none", 0)
    assert [step.values["t"] for step in seen] == found["t"].values.tolist()
    assert seen[2].values["loss test"] == float(found["loss"].sel(split="test", t=0.5))
    assert seen[-1].fraction == 1


def test_profile_points_splits_and_refusals(small):
    path = LinearPath(drawn(1), drawn(2))
    one = profile_path(path, net(), small, points=[0.3], splits=["test"])
    assert one["loss"].shape == (1, 1)
    for points in (1, [0.5, 0.2], [], [0.0, float("nan")]):
        with pytest.raises(WorkbenchError, match="points="):
            profile_path(path, net(), small, points=points)
    with pytest.raises(WorkbenchError, match="calibration='reset'"):
        profile_path(path, net(), small, calibration="reset")


def test_cancel_passes_through(small):
    seen = []

    def stop(step):
        seen.append(step)
        if step.done == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        profile_path(LinearPath(drawn(1), drawn(2)), net(), small, points=9, progress=stop)
    assert len(seen) == 2


def test_non_finite_losses_are_kept_and_counted(small):
    a = drawn(1)
    b = {n: t * float("inf") if n == "4.bias" else t for n, t in drawn(2).items()}
    found = profile_path(LinearPath(a, b), net(), small, points=3)
    assert not np.isfinite(found["loss"].sel(t=1.0)).any()
    assert np.isfinite(found["loss"].sel(t=0.0)).all()
    assert found.attrs["non_finite"] >= 2


def test_an_evaluator_serves_many_states(small):
    evaluator = Evaluator(net(), small, splits=["test"])
    assert evaluator(drawn(1)) == evaluator(drawn(1))
    assert evaluator(drawn(1)) != evaluator(drawn(2))


def test_a_model_with_tied_weights_is_measured_under_both_names():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.head(torch.relu(self.b(torch.relu(self.a(x)))))

    model = Tied()
    x, y = torch.randn(8, 5), torch.arange(8) % 2
    mine = Task("mine", splits={"train": (x, y)})
    expected = nn.functional.cross_entropy(model(x), y).item()
    for state in (model.state_dict(), {name: tensor.clone() for name, tensor in model.state_dict().items()}):
        assert evaluate(model, state, mine)["train", "loss"] == pytest.approx(expected, rel=1e-5)
    # a file need not know of the tie: then each name counts for itself
    apart = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    apart["b.weight"] += 1
    assert evaluate(model, apart, mine)["train", "loss"] != pytest.approx(expected, rel=1e-3)
