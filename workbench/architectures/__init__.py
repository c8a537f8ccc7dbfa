"""Architectures: named networks whose options are data, so that a checkpoint can say what it belongs to.

``architecture("mlp", inputs=64, outputs=10, width=256, depth=2).build(seed=0)`` gives a fresh module. A new architecture is one
file in this folder that registers a module class (or a function giving one) under ``@ARCHITECTURES.register("name")``.
"""

from __future__ import annotations

from workbench.architectures.base import ARCHITECTURES, Architecture, architecture
from workbench.architectures.resolve import OutsideModel, resolve_model

__all__ = ["ARCHITECTURES", "Architecture", "OutsideModel", "architecture", "resolve_model"]
