"""Training: a seed's weights are its own, in company, alone, in threads and one by one; recipes do what they say."""

import math
import threading
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from workbench.architectures import architecture
from workbench.errors import Cancelled, WorkbenchError
from workbench.states import fingerprint
from workbench.tasks import Task, task
from workbench.training import Recipe, default_recipe, train
from workbench.training.augment import augment


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits():
    return task("digits").subset("train", 300, 0)


SMALL = architecture("mlp", width=16)
SHORT = {"epochs": 3, "batch_size": 40}  # 300 examples: the last batch is shorter


def largest_difference(first, second):
    return max(float((first.state[name] - second.state[name]).abs().max()) for name in first.state)


@pytest.mark.parametrize(
    "recipe",
    [
        {"optimizer": "adam"},
        {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "cosine"},
        {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "schedule": "cosine", "warmup_epochs": 1},
    ],
    ids=lambda recipe: recipe["optimizer"],
)
def test_a_seed_is_the_same_in_company_alone_and_one_by_one(digits, recipe):
    company = train(SMALL, digits, seeds=(3, 5, 8), **SHORT, **recipe)
    alone = train(SMALL, digits, seeds=[5], **SHORT, **recipe)
    loop = train(SMALL, digits, seeds=(3, 5, 8), batched=False, **SHORT, **recipe)
    assert largest_difference(company[1], alone[0]) <= 1e-5
    assert max(largest_difference(a, b) for a, b in zip(company, loop, strict=True)) <= 1e-5
    assert largest_difference(company[0], company[1]) > 0.1  # the control: seeds differ
    assert loop[0].notes[0] == "seeds trained one by one, as asked"


def test_it_is_what_plain_torch_gives(digits):
    """A second implementation: nn.Sequential, torch.optim, the same initial weights and order."""
    from workbench.training.run import stream

    recipe = {"epochs": 2, "batch_size": 40, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}
    found = train(SMALL, digits, seeds=[7], **recipe)[0]
    start = train(SMALL, digits, seeds=[7], epochs=0)[0].state
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10))
    names = dict(zip(net.state_dict(), start, strict=True))
    net.load_state_dict({own: start[name] for own, name in names.items()})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    x, y = digits.split("train")
    order = stream(7, "order")
    for _ in range(2):
        for chosen in torch.randperm(300, generator=order).split(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
    for own, name in names.items():
        assert torch.allclose(net.state_dict()[own], found.state[name], atol=1e-5), name
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(net(digits.split("test")[0]), digits.split("test")[1]))
    assert float(found.metadata["test_loss"]) == pytest.approx(expected, abs=1e-4)


def test_batch_norm_is_trained_one_by_one_and_says_so(digits):
    images = Task("images", {name: (x.reshape(-1, 1, 8, 8), y) for name, (x, y) in digits.splits.items()})
    net = architecture("convnet", width=2)
    found = train(net, images, seeds=(1, 2), epochs=1, batch_size=50)
    assert "norms.0 (BatchNorm2d) updates running statistics in place" in found[0].notes[0]
    assert found[0].state["norms.0.num_batches_tracked"] == 6
    assert float(found[0].state["norms.1.running_mean"].abs().max()) > 0.01
    alone = train(net, images, seeds=[2], epochs=1, batch_size=50)[0]
    assert fingerprint(alone.state) == fingerprint(found[1].state)
    with pytest.raises(WorkbenchError, match=r"one batch: norms\.0"):
        train(net, images, seeds=(1, 2), epochs=1, batched=True)
    layered = architecture("convnet", width=2, norm="layer")  # the control: without running statistics seeds can be stacked
    stacked = train(layered, images, seeds=(1, 2), epochs=1, batch_size=50, batched=True)
    assert stacked[0].notes == ()
    usual = train(layered, images, seeds=(1, 2), epochs=1, batch_size=50)
    assert "slower on the CPU" in usual[0].notes[0]
    assert largest_difference(usual[1], stacked[1]) <= 1e-5


class Undecided(nn.Module):
    """Its forward pass looks at a value, which vmap cannot do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        y = self.layer(x)
        return y if float(y.detach().sum()) > -1e9 else -y


@dataclass(frozen=True)
class Outside:
    name: str = "outside"
    kind: type = Undecided

    def build(self, seed=None):
        torch.manual_seed(seed)
        return self.kind()


def test_a_layer_that_vmap_refuses_falls_back(digits):
    found = train(Outside(), digits, seeds=(0, 1), epochs=1)
    assert found[0].notes[0].startswith("seeds trained one by one: torch.func.vmap refuses it")
    assert "model" in found[0].metadata
    assert found[0].architecture is None
    with pytest.raises(WorkbenchError, match="cannot be trained in one batch"):
        train(Outside(), digits, epochs=1, batched=True)


def test_threads_give_identical_weights_and_leave_the_global_generator(digits):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = {}

    def work(i):
        torch.set_num_threads(1)
        found[i] = [c.fingerprint for c in train(SMALL, digits, seeds=(0, 1), **SHORT)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    work(3)
    assert len({tuple(prints) for prints in found.values()}) == 1
    assert len(set(found[0])) == 2


def test_saved_epochs_lie_on_the_same_road(digits):
    found = train(SMALL, digits, seeds=(0, 1), save_epochs=(0, 2), **SHORT)
    assert [(c.metadata["seed"], c.metadata["epoch"]) for c in found] == [(s, e) for s in "01" for e in "023"]
    assert fingerprint(found[0].state) == fingerprint(SMALL.build(0).state_dict())
    assert found[2].fingerprint == train(SMALL, digits, seeds=[0], **SHORT)[0].fingerprint
    losses = [float(c.metadata["train_loss"]) for c in found[:3]]
    assert losses == sorted(losses, reverse=True)
    with pytest.raises(WorkbenchError, match="from 0 to 3"):
        train(SMALL, digits, save_epochs=(4,), **SHORT)


def test_metadata_rebuild_the_model(digits):
    found = train(SMALL, digits, seeds=[4], **SHORT)[0]
    model = found.architecture.build()
    model.load_state_dict(found.state)
    x, y = digits.split("test")
    with torch.no_grad():
        right = float((model(x).argmax(1) == y).float().mean())
    assert float(found.metadata["test_accuracy"]) == pytest.approx(right, abs=1e-6)
    assert found.metadata["task"] == "digits"
    assert found.recipe == {**found.recipe, "epochs": 3, "batch_size": 40, "optimizer": "adam"}
    assert Recipe(**found.recipe) == default_recipe("mlp", "digits").override(**SHORT)


def test_progress_reports_and_cancels(digits):
    steps = []
    train(SMALL, digits, seeds=(0, 1), progress=steps.append, **SHORT)
    assert (steps[-1].done, steps[-1].total, steps[-1].stage) == (24, 24, "training")
    assert {"epoch", "train loss"} <= set(steps[-1].values)

    def cancel(step):
        raise Cancelled

    with pytest.raises(Cancelled):
        train(SMALL, digits, progress=cancel, **SHORT)


def test_divergence_is_noted(digits):
    found = train(SMALL, digits, seeds=[0], epochs=2, optimizer="sgd", lr=1e30, momentum=0.9)[0]
    assert "training diverged" in found.notes[-1]
    assert not any("diverged" in note for note in train(SMALL, digits, seeds=[0], epochs=1)[0].notes)


def test_learning_rates():
    recipe = Recipe(epochs=10, lr=0.1, schedule="cosine", warmup_epochs=2)
    rates = [recipe.learning_rate(step, 5) for step in range(50)]
    assert rates[0] == 1e-6
    assert rates[5] == pytest.approx(0.05, rel=1e-4)
    assert rates[10] == 0.1
    assert rates[30] == pytest.approx(0.05)
    assert rates[49] == pytest.approx(0.05 * (1 + math.cos(math.pi * 39 / 40)))
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert {Recipe(lr=0.3).learning_rate(step, 5) for step in range(50)} == {0.3}


def test_recipes():
    assert default_recipe("mlp", "digits") == Recipe(epochs=100, batch_size=50, optimizer="adam", lr=1e-3)
    resnet = default_recipe("resnet", "cifar10")
    assert (resnet.optimizer, resnet.lr, resnet.weight_decay, resnet.warmup_epochs, resnet.epochs) == ("sgd", 0.1, 1e-4, 5, 250)
    assert resnet.override(lr=0.2, epochs=None).lr == 0.2
    swapped = default_recipe("mlp", "digits").override(optimizer="sgd")
    assert (swapped.lr, swapped.momentum) == (0.1, 0.9)
    for wrong, message in (
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"epochs": -1}, "0 or more"),
        ({"batch_size": 0}, "1 or more"),
        ({"lr": 0.0}, "positive"),
        ({"augment": "flip"}, "augmentation"),
    ):
        with pytest.raises(WorkbenchError, match=message):
            Recipe(**wrong)


def test_augmentation_is_decided_by_its_generator():
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    first, again, other = (augment("affine", x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert augment("none", x, torch.Generator()) is x
    assert first.shape == x.shape
    # A disc in the middle survives turning and flipping, and shrinks or grows by .8–1.2 in radius.
    grid = torch.linspace(-1, 1, 64)
    disc = ((grid[:, None] ** 2 + grid[None] ** 2) < 0.5**2).float().expand(400, 1, 64, 64)
    area = augment("affine", disc, torch.Generator().manual_seed(0)).sum((1, 2, 3)) / disc[0].sum()
    assert 0.8**2 - 0.02 < float(area.min()) < 0.68
    assert 1.40 < float(area.max()) < 1.2**2 + 0.02
    with pytest.raises(WorkbenchError, match="images"):
        augment("affine", torch.zeros(3, 64), torch.Generator())


def test_augmented_training_is_reproducible(digits):
    images = Task("images", {name: (x.reshape(-1, 1, 8, 8), y) for name, (x, y) in digits.splits.items()})
    net = architecture("convnet", width=2, norm="group")
    recipe = {"epochs": 1, "augment": "affine"}
    company, alone = train(net, images, seeds=(0, 1), **recipe), train(net, images, seeds=[1], **recipe)
    assert largest_difference(company[1], alone[0]) <= 1e-5
    assert largest_difference(company[1], train(net, images, seeds=[1], epochs=1)[0]) > 1e-4


class Dropping(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 10), nn.Dropout(0.5))


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (architecture("mlp", inputs=63), {}, r"cannot be trained on 'digits'.*\(64,\)"),
        (architecture("mlp", outputs=9), {}, r"9 outputs and 'digits' has 10 classes.*outputs=10"),
        (Outside(kind=Dropping), {}, "drops units at random"),
        (SMALL, {"seeds": ()}, "one or more different numbers"),
        (SMALL, {"seeds": (1, 1)}, "different numbers"),
        (SMALL, {"seeds": (-1,)}, "from 0 on"),
        (SMALL, {"batched": "yes"}, "'auto'"),
        ("mpl", {}, "did you mean 'mlp'"),
    ],
)
def test_what_cannot_work_is_refused_before_training(digits, net, options, message):
    with pytest.raises(WorkbenchError, match=message):
        train(net, digits, epochs=1, **options)


def test_a_task_without_a_train_split_is_refused(digits):
    with pytest.raises(WorkbenchError, match="'train'"):
        train(SMALL, Task("only test", {"test": digits.split("test")}), epochs=1)


def test_tied_weights_are_trained_one_seed_after_another_and_stay_tied(monkeypatch, tmp_path):
    code = """from torch import nn
class Tied(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
        self[4].weight = self[2].weight
"""
    (tmp_path / "tied_nets.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    first, second = train("tied_nets:Tied", "digits", seeds=(0, 1), epochs=1)
    assert any("4.weight is 2.weight (tied weights)" in note for note in first.notes)
    assert torch.equal(first.state["2.weight"], first.state["4.weight"])
    assert not torch.equal(first.state["2.weight"], second.state["2.weight"])
