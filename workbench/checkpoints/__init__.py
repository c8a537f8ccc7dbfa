"""Checkpoints: weights from files, safely, with a note of everything that was done to read them.

``load_checkpoint`` recognises a file by its content and never runs code in it; ``fit_to_model`` says which tensors found their
place; ``save_checkpoint`` writes ``.safetensors``; ``shipped_models`` lists what travels with the package.
"""

from __future__ import annotations

from workbench.checkpoints.checkpoint import Checkpoint
from workbench.checkpoints.files import load_checkpoint
from workbench.checkpoints.fit import Fit, fit_to_model, match_names
from workbench.checkpoints.manifest import shipped_checkpoint, shipped_models
from workbench.checkpoints.saving import save_checkpoint

__all__ = [
    "Checkpoint",
    "Fit",
    "fit_to_model",
    "load_checkpoint",
    "match_names",
    "save_checkpoint",
    "shipped_checkpoint",
    "shipped_models",
]
