"""The models in data/: complete, as the manifest says, rebuilt from their own metadata, and remade by the script."""

import hashlib
import importlib.util
import json

import pytest
import torch

from workbench.architectures import Architecture
from workbench.checkpoints import fit_to_model, load_checkpoint, shipped_checkpoint, shipped_models
from workbench.errors import WorkbenchError
from workbench.shipped import folder
from workbench.tasks import task

ENTRIES = {entry["name"]: entry for entry in shipped_models()}


def test_the_set_is_complete_and_small():
    expected = {f"digits-mlp-w256-seed{seed}" for seed in range(8)}
    expected |= {f"digits-mlp-w{width}-seed{seed}" for width in (8, 16, 32, 64, 128) for seed in (0, 1)}
    expected |= {"digits-convnet-seed0", "digits-convnet-seed1"}
    assert set(ENTRIES) == expected
    files = {path.name for path in (folder("data") / "models").iterdir()}
    assert files == {f"{name}.safetensors" for name in expected}
    assert sum(path.stat().st_size for path in folder("data").rglob("*") if path.is_file()) < 12e6


@pytest.mark.parametrize("name", ENTRIES)
def test_each_is_what_the_manifest_says(name):
    entry = ENTRIES[name]
    path = folder("data") / entry["file"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
    assert path.stat().st_size == entry["bytes"]
    checkpoint = load_checkpoint(path)
    assert checkpoint.fingerprint == entry["fingerprint"]
    assert checkpoint.notes == ()
    assert checkpoint.architecture == Architecture(entry["architecture"], entry["options"])
    assert checkpoint.recipe == entry["recipe"]
    assert checkpoint.metadata["seed"] == str(entry["seed"])
    model = checkpoint.architecture.build()
    model.load_state_dict(fit_to_model(checkpoint, model))
    model.eval()
    digits = task(entry["task"], **entry["task_options"])
    for split in ("train", "test"):
        x, y = digits.split(split)
        with torch.no_grad():
            outputs = model(x)
        assert float(digits.example_losses(outputs, y).double().mean()) == pytest.approx(entry[f"{split}_loss"], abs=1e-4)
        assert float((outputs.argmax(1) == y).double().mean()) == pytest.approx(entry[f"{split}_accuracy"], abs=2e-3)


def test_wide_networks_are_good_and_seeds_differ():
    wide = [entry for entry in ENTRIES.values() if entry["options"].get("width") == 256]
    assert all(entry["test_accuracy"] >= 0.98 and entry["train_accuracy"] == 1 for entry in wide)
    assert len({entry["fingerprint"] for entry in ENTRIES.values()}) == len(ENTRIES)


def test_batch_statistics_are_not_the_initial_ones():
    state = shipped_checkpoint("digits-convnet-seed0").state
    assert state["norms.0.num_batches_tracked"] == 30 * 28
    assert float((state["norms.0.running_var"] - 1).abs().min()) > 1e-3


def test_an_unknown_name_gets_a_guess():
    with pytest.raises(WorkbenchError, match="did you mean 'digits-mlp-w256-seed0'"):
        shipped_checkpoint("digits-mlp-w256-sed0")


def test_a_changed_file_is_noticed(tmp_path, monkeypatch):
    name = "digits-mlp-w8-seed0"
    entry = ENTRIES[name]
    (tmp_path / "models").mkdir()
    (tmp_path / "manifest.json").write_text(json.dumps({"models": [entry]}))
    content = bytearray((folder("data") / entry["file"]).read_bytes())
    (tmp_path / entry["file"]).write_bytes(content)
    monkeypatch.setattr("workbench.checkpoints.manifest.folder", lambda _: tmp_path)
    assert shipped_checkpoint(name).fingerprint == entry["fingerprint"]
    content[-1] ^= 1
    (tmp_path / entry["file"]).write_bytes(content)
    with pytest.raises(WorkbenchError, match="not the file the manifest describes"):
        shipped_checkpoint(name)


@pytest.mark.slow
def test_the_script_remakes_the_narrow_ones(tmp_path, monkeypatch):
    """Bit-equal where the manifest was made; elsewhere rounding may differ, so accuracies are compared."""
    spec = importlib.util.spec_from_file_location("make", folder("data") / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    monkeypatch.setattr(make, "WIDTHS", {8: 2})
    monkeypatch.setattr(make, "CONVNET_SEEDS", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        manifest = make.write(tmp_path)
    finally:
        torch.set_num_threads(threads)
    made = json.loads(manifest.read_text())["models"]
    assert [entry["name"] for entry in made] == ["digits-mlp-w8-seed0", "digits-mlp-w8-seed1", "digits-convnet-seed0"]
    for entry in made:
        known = ENTRIES[entry["name"]]
        assert {key: entry[key] for key in ("recipe", "options", "seed")} == {
            key: known[key] for key in ("recipe", "options", "seed")
        }
        assert entry["test_accuracy"] == pytest.approx(known["test_accuracy"], abs=0.03)
        if entry["fingerprint"] == known["fingerprint"]:
            assert entry["sha256"] == known["sha256"]
