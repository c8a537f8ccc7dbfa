"""The trained models that travel with the package; ``data/README.md`` says how they were made."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from workbench.checkpoints.checkpoint import Checkpoint
from workbench.checkpoints.files import load_checkpoint
from workbench.errors import WorkbenchError, unknown_name
from workbench.shipped import folder


def shipped_models() -> list[dict[str, Any]]:
    """The manifest: one dict per model with name, file, architecture, options, task, seed, recipe, sha256, fingerprint, and loss
    and accuracy on both splits."""
    return json.loads((folder("data") / "manifest.json").read_text())["models"]


def shipped_checkpoint(name: str) -> Checkpoint:
    """The shipped checkpoint ``name``, for example "digits-mlp-w256-seed0"; its file must have the manifest's sha256."""
    entries = {entry["name"]: entry for entry in shipped_models()}
    if name not in entries:
        raise unknown_name("shipped checkpoint", name, entries)
    entry = entries[name]
    path = folder("data") / entry["file"]
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
        raise WorkbenchError(f"{path} is not the file the manifest describes", next_step="reinstall workbench, or run data/make.py")
    return load_checkpoint(path)
