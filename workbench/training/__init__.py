"""Training: all seeds of a list in one batched run, each with the weights it would have had alone.

``train(architecture("mlp"), task("digits"), seeds=range(8))`` follows the recipe the literature uses for that pair; every part
of the recipe is a keyword.
"""

from __future__ import annotations

from workbench.training.recipe import Recipe, default_recipe
from workbench.training.run import train

__all__ = ["Recipe", "default_recipe", "train"]
