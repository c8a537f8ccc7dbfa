"""Train the models that travel with the package and write them beside this file, with a manifest.

    python data/make.py            train all (about a minute on one core) and write data/models and data/manifest.json
    python data/make.py --check    train all and compare with what is there; exit code 1 where something differs

On the machine type and torch version that the manifest names, the files come out byte for byte. Elsewhere rounding differs, and
``--check`` says by how much the weights and accuracies do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from pathlib import Path

import torch

from workbench.architectures import Architecture, architecture
from workbench.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from workbench.schema import versions
from workbench.states import distance
from workbench.tasks import task
from workbench.training import train

HERE = Path(__file__).resolve().parent
COMMAND = "python data/make.py"
WIDTHS = {8: 2, 16: 2, 32: 2, 64: 2, 128: 2, 256: 8}  # width of both hidden layers -> number of seeds
CONVNET_SEEDS = 2


def models() -> dict[str, Checkpoint]:
    """Name -> trained checkpoint, in the order of the manifest."""
    found = {}
    for width, seeds in WIDTHS.items():
        for checkpoint in train(
            architecture("mlp", inputs=64, outputs=10, width=width, depth=2), task("digits"), seeds=range(seeds)
        ):
            found[f"digits-mlp-w{width}-seed{checkpoint.metadata['seed']}"] = checkpoint
    images = task("digits", flatten=False)
    for checkpoint in train(architecture("convnet"), images, seeds=range(CONVNET_SEEDS)):
        found[f"digits-convnet-seed{checkpoint.metadata['seed']}"] = checkpoint
    return found


def entry(name: str, checkpoint: Checkpoint, path: Path) -> dict:
    """One model's part of the manifest."""
    facts = checkpoint.metadata
    built = Architecture.from_json(facts["architecture"])
    return {
        "name": name,
        "file": f"models/{path.name}",
        "architecture": built.name,
        "options": dict(built.options),
        "parameters": built.parameters(),
        "task": facts["task"],
        "task_options": {} if built.name == "mlp" else {"flatten": False},
        "seed": int(facts["seed"]),
        "recipe": checkpoint.recipe,
        **{key: float(facts[key]) for key in ("train_loss", "train_accuracy", "test_loss", "test_accuracy")},
        "fingerprint": checkpoint.fingerprint,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "bytes": path.stat().st_size,
    }


def write(folder: Path) -> Path:
    """Train, and write ``models/*.safetensors`` and ``manifest.json`` into ``folder``."""
    entries = []
    for name, checkpoint in models().items():
        path = save_checkpoint(checkpoint.state, folder / "models" / f"{name}.safetensors", metadata=checkpoint.metadata)
        entries.append(entry(name, checkpoint, path))
    made = {"command": COMMAND, "machine": platform.machine(), "versions": {**versions(), "torch": torch.__version__}}
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({"made_with": made, "models": entries}, indent=1) + "\n")
    return manifest


def check(folder: Path) -> int:
    """Train, compare with ``folder`` and report; the number of models whose weights are not bit-equal."""
    known = {item["name"]: item for item in json.loads((folder / "manifest.json").read_text())["models"]}
    different = 0
    for name, fresh in models().items():
        shipped = load_checkpoint(folder / known[name]["file"])
        same = fresh.fingerprint == known[name]["fingerprint"] == shipped.fingerprint
        different += not same
        apart = "bit-equal" if same else f"weights {distance(fresh.state, shipped.state):.2e} apart"
        print(f"{name}: {apart}, test accuracy {fresh.metadata['test_accuracy']} (shipped {known[name]['test_accuracy']:.6f})")
    return different


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with what is there and write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the fastest for networks this small
    if arguments.check:
        sys.exit(1 if check(HERE) else 0)
    print(f"wrote {write(HERE)}")
