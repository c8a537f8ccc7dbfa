"""Tasks: sizes and scaling of each data set, honest refusals of damaged files, and iteration that never shuffles."""

import gzip
import pickle
import struct

import numpy as np
import pytest
import torch

from workbench.errors import WorkbenchError
from workbench.tasks import TASKS, Task, cifar, idx, task


def test_digits_are_split_as_documented():
    digits = task("digits")
    (x, y), (x_test, y_test) = digits.split("train"), digits.split("test")
    assert x.shape == (1400, 64)
    assert x_test.shape == (397, 64)
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    assert digits.classes == 10
    # An independent second reading of the split.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(1797)
    assert np.array_equal(torch.cat([y, y_test]).numpy(), labels[order])
    assert np.array_equal(torch.cat([x, x_test]).numpy() * 16, images[order])
    assert torch.equal(task("digits", flatten=False).split("test")[0].flatten(1), x_test)


def test_batches_are_in_order_and_complete():
    digits = task("digits")
    x, _ = digits.split("test")
    batches = [batch for batch, _ in digits.batches("test", 100)]
    assert [len(batch) for batch in batches] == [100, 100, 100, 97]
    assert torch.equal(torch.cat(batches), x)
    assert len(list(digits.batches("test"))) == 1
    with pytest.raises(WorkbenchError, match="at least 1"):
        list(digits.batches("test", 0))


def test_subset_is_decided_by_its_seed():
    digits = task("digits")
    first, again, other = (digits.subset("train", 50, seed) for seed in (1, 1, 2))
    assert torch.equal(first.split("train")[0], again.split("train")[0])
    assert not torch.equal(first.split("train")[0], other.split("train")[0])
    assert first.size("test") == 397
    assert first.fingerprint == again.fingerprint != digits.fingerprint
    assert first.notes[-1] == "train: 50 of 1400 examples, seed 1"
    with pytest.raises(WorkbenchError, match="between 1 and 1400"):
        digits.subset("train", 1401)


def test_losses_are_per_example():
    x, y = torch.zeros(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    judged = Task("mine", {"train": (x, y)})
    expected = torch.tensor([-torch.log_softmax(o, 0)[t] for o, t in zip(outputs, y, strict=True)])
    assert torch.allclose(judged.example_losses(outputs, y), expected)
    assert torch.equal(judged.example_metrics(outputs, y)["accuracy"], (outputs.argmax(1) == y).float())
    sequence = outputs.reshape(2, 3, 3)
    assert torch.allclose(judged.example_losses(sequence, y.reshape(2, 3)), expected.reshape(2, 3).mean(1))
    own = Task("mine", {"train": (x, y)}, loss=lambda outputs, targets: outputs[:, 0] * 0 + 7, metrics=())
    assert own.example_losses(outputs, y).tolist() == [7] * 6


@pytest.mark.parametrize(
    ("splits", "options", "message"),
    [
        ({}, {}, "no splits"),
        ({"train": (torch.zeros(3, 2), torch.zeros(2).long())}, {}, "3 inputs and 2 targets"),
        ({"train": (torch.zeros(0, 2), torch.zeros(0).long())}, {}, "empty"),
        ({"train": (torch.tensor([[1.0], [float("nan")]]), torch.zeros(2).long())}, {}, "1 of 2 values that are NaN"),
        ({"train": (torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(3).long())}, {}, r"x\.float\(\) / 255"),
        ({"train": (torch.zeros(3, 2), torch.zeros(3))}, {}, r"y\.long\(\)"),
        ({"train": (torch.zeros(3, 2), torch.zeros(3, 1).long())}, {}, r"squeeze"),
        ({"train": (torch.zeros(3, 2), torch.tensor([0, 1, -1]))}, {}, "go down to -1"),
        ({"train": (torch.zeros(3, 2), torch.zeros(3).long())}, {"loss": "crossentropy"}, "did you mean 'cross_entropy'"),
        ({"train": (torch.zeros(3, 2), torch.zeros(3).long())}, {"metrics": ("acuracy",)}, "did you mean 'accuracy'"),
        (
            {"train": (torch.zeros(3, 2), torch.zeros(3).long()), "test": (torch.zeros(3, 4), torch.zeros(3).long())},
            {},
            "different shapes",
        ),
    ],
)
def test_bad_tensors_are_refused_with_reasons(splits, options, message):
    with pytest.raises(WorkbenchError, match=message):
        Task("mine", splits, **options)


def test_good_tensors_pass():  # the control of the refusals above; arrays are taken too
    mine = Task("mine", {"train": (np.zeros((3, 2), np.float32), np.array([0, 1, 1], np.int32))})
    assert mine.example_inputs[0].shape == (2, 2)
    assert mine.classes == 2
    assert Task("line", {"train": (torch.zeros(3, 1), torch.zeros(3, 1))}, loss="mse", metrics=()).classes is None


def test_unknown_names_get_a_guess():
    with pytest.raises(WorkbenchError, match="did you mean 'digits'"):
        task("digit")
    with pytest.raises(WorkbenchError, match="did you mean 'flatten'"):
        task("digits", flaten=True)
    with pytest.raises(WorkbenchError, match="needs the option 'root'"):
        task("mnist")
    with pytest.raises(WorkbenchError, match="one of test, train"):
        task("digits").split("validation")
    assert {"cifar10", "digits", "fashion-mnist", "mnist"} <= set(TASKS)


@pytest.fixture
def idx_folder(tmp_path, monkeypatch):
    """Twelve train and five test images in the publishers' format: one pair raw, one gzipped."""
    monkeypatch.setattr(idx, "SIZES", {"train": 12, "test": 5})
    rng = np.random.default_rng(0)
    images = {}
    for split, stem in idx.STEMS.items():
        n = idx.SIZES[split]
        images[split] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        pictures = bytes((0, 0, 8, 3)) + struct.pack(">3I", n, 28, 28) + images[split].tobytes()
        answers = bytes((0, 0, 8, 1)) + struct.pack(">I", n) + labels.tobytes()
        if split == "train":
            (tmp_path / f"{stem}-images-idx3-ubyte").write_bytes(pictures)
            (tmp_path / f"{stem}-labels-idx1-ubyte").write_bytes(answers)
        else:
            (tmp_path / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pictures))
            (tmp_path / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(answers))
    return tmp_path, images


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_raw_and_gzipped(idx_folder, name):
    folder, images = idx_folder
    read = task(name, root=folder)
    for split in ("train", "test"):
        assert np.allclose(read.split(split)[0][:, 0].numpy() * 255, images[split], atol=1e-4)
    assert task(name, root=str(folder), flatten=True).split("test")[0].shape == (5, 784)


def test_damaged_idx_files_say_what_is_wrong(idx_folder):
    folder, _ = idx_folder
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    whole = images.read_bytes()
    images.write_bytes(whole[:-100])
    with pytest.raises(WorkbenchError, match="stopped early"):
        task("mnist", root=folder)
    images.write_bytes(labels.read_bytes())
    with pytest.raises(WorkbenchError, match="does not begin like an idx file"):
        task("mnist", root=folder)
    images.write_bytes(gzip.compress(whole)[:-50])
    with pytest.raises(WorkbenchError, match="damaged gzip"):
        task("mnist", root=folder)
    images.write_bytes(whole[:4] + struct.pack(">3I", 12, 14, 56) + whole[16:])
    with pytest.raises(WorkbenchError, match=r"\(12, 14, 56\).*\(12, 28, 28\)"):
        task("mnist", root=folder)
    images.unlink()
    with pytest.raises(WorkbenchError, match=r"no train-images-idx3-ubyte.*t10k-labels-idx1-ubyte"):
        task("mnist", root=folder)
    with pytest.raises(WorkbenchError, match="There is no folder"):
        task("mnist", root=folder / "absent")


@pytest.fixture
def cifar_arrays(monkeypatch):
    monkeypatch.setattr(cifar, "SIZES", {"train": 10, "test": 4})
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8),
        "y_train": (np.arange(10) % 10).astype(np.uint8),
        "x_test": rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8),
        "y_test": np.arange(4).astype(np.uint8),
    }


def write_batches(folder, arrays):
    folder.mkdir()
    for i, name in enumerate(cifar.BATCHES["train"] + cifar.BATCHES["test"]):
        part, chosen = ("test", slice(None)) if name == "test_batch" else ("train", slice(2 * i, 2 * i + 2))
        rows = arrays[f"x_{part}"][chosen].transpose(0, 3, 1, 2).reshape(-1, 3072)
        content = {b"data": np.ascontiguousarray(rows), b"labels": arrays[f"y_{part}"][chosen].tolist()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def test_cifar_from_npz_and_from_batches_is_the_same(tmp_path, cifar_arrays):
    np.savez(tmp_path / "cifar10.npz", **cifar_arrays)
    write_batches(tmp_path / "cifar-10-batches-py", cifar_arrays)
    plain = task("cifar10", root=tmp_path, normalise=False)
    x, _ = plain.split("train")
    assert np.allclose(x.numpy() * 255, cifar_arrays["x_train"].transpose(0, 3, 1, 2), atol=1e-4)
    normed = task("cifar10", root=tmp_path / "cifar10.npz").split("train")[0]
    assert torch.allclose(normed[:, 1], (x[:, 1] - 0.456) / 0.224, atol=1e-5)
    (tmp_path / "cifar10.npz").unlink()
    assert task("cifar10", root=tmp_path, normalise=False).fingerprint == plain.fingerprint


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_cifar_batch_cannot_run_code(tmp_path, cifar_arrays):
    write_batches(tmp_path / "cifar10", cifar_arrays)
    trap = tmp_path / "trap"
    (tmp_path / "cifar10" / "data_batch_1").write_bytes(pickle.dumps({b"data": Hostile(trap)}))
    with pytest.raises(WorkbenchError, match=r"asks to run (_?io|builtins)\.open"):
        task("cifar10", root=tmp_path)
    assert not trap.exists()
    pickle.loads((tmp_path / "cifar10" / "data_batch_1").read_bytes())  # the control: an ordinary unpickler falls for it
    assert trap.exists()


def test_damaged_cifar_files_say_what_is_wrong(tmp_path, cifar_arrays):
    with pytest.raises(WorkbenchError, match=r"cifar10\.npz .*test_batch"):
        task("cifar10", root=tmp_path)
    np.savez(tmp_path / "cifar10.npz", **{**cifar_arrays, "x_train": cifar_arrays["x_train"][:9]})
    with pytest.raises(WorkbenchError, match=r"\(9, 32, 32, 3\)"):
        task("cifar10", root=tmp_path)
    np.savez(tmp_path / "cifar10.npz", x_train=cifar_arrays["x_train"])
    with pytest.raises(WorkbenchError, match="has no y_train, x_test, y_test"):
        task("cifar10", root=tmp_path)
    (tmp_path / "cifar10.npz").write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(WorkbenchError, match="download it again"):
        task("cifar10", root=tmp_path)


# -- judging: outputs and targets that do not go together


X, LABELS = torch.zeros(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        ("cross_entropy", LABELS + 1, "3 outputs, and the labels of 'mine' go up to 3"),
        ("cross_entropy", torch.eye(3).long()[LABELS], "fails on outputs"),
        ("mse", torch.zeros(6, 2), "fails on outputs"),
        ("mse", LABELS, "fails on outputs"),
        (torch.nn.CrossEntropyLoss(), LABELS, r"shape \(\) for 6 examples.*reduction"),
        (lambda outputs, targets: outputs.sum(0), LABELS, r"shape \(3,\) for 6 examples"),
        (lambda outputs, targets: None, LABELS, "gives a NoneType"),
        (lambda outputs, targets: 1 / 0, LABELS, "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_words(loss, targets, message):
    with pytest.raises(WorkbenchError, match=message):
        Task("mine", {"train": (X, targets)}, loss=loss).judge(torch.randn(6, 3), targets)


def test_guesses_are_never_broadcast_against_targets():
    with pytest.raises(WorkbenchError, match="fails on outputs"):
        Task("mine", {"train": (X, LABELS[:, None].repeat(1, 6))}, loss=lambda o, t: o[:, 0]).judge(
            torch.randn(6, 3), LABELS[:, None]
        )


def test_accuracy_is_the_default_only_where_it_means_something():
    assert Task("labels", {"train": (X, LABELS)}).metrics == ("accuracy",)
    assert Task("numbers", {"train": (X, torch.zeros(6, 3))}, loss="mse").metrics == ()
    assert Task("own", {"train": (X, LABELS)}, loss=lambda o, t: o[:, 0]).metrics == ("accuracy",)
    with pytest.raises(WorkbenchError, match="not class labels"):
        Task("numbers", {"train": (X, torch.zeros(6, 3))}, loss="mse", metrics="accuracy")


@pytest.mark.parametrize(
    "splits", [[(X, LABELS)], {1: (X, LABELS)}, {"train": (X.to("meta"), LABELS)}, {"train": (np.array([None] * 6), LABELS)}]
)
def test_splits_of_another_kind_are_named(splits):
    with pytest.raises(WorkbenchError, match="Expected"):
        Task("mine", splits)


def test_numpy_inputs_come_in_the_precision_of_a_network():
    task = Task("mine", {"train": (np.zeros((6, 4)), LABELS.numpy())})
    assert task.split("train")[0].dtype == torch.float32
    assert Task("mine", {"train": (X.double(), LABELS)}).split("train")[0].dtype == torch.float64


def test_splits_may_be_chosen_by_one_name_and_each_comes_once():
    task = Task("mine", {"train": (X, LABELS), "test": (X, LABELS)})
    assert task.chosen("test") == ("test",)
    assert task.chosen(["test", "test", "train"]) == ("test", "train")
    assert task.chosen(None) == ("train", "test")
    for wrong in ("validation", []):
        with pytest.raises(WorkbenchError, match="Expected"):
            task.chosen(wrong)
