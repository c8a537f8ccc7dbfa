"""workbench: are these trained networks the same solution, up to the symmetries of their architecture?

The names below are the whole main road, in the order one walks it: bring models and data, discover the symmetry, align, prove,
measure the loss along a path, see which singular directions met. Each is imported when it is first used, so that
``import workbench`` costs nothing; ``workbench.plots`` draws what they return.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Module -> its public names, in reading order.
_HOME = {
    "errors": ("WorkbenchError", "Cancelled"),
    "progress": ("Progress", "Step"),
    # Models and data
    "tasks": ("Task", "task"),
    "architectures": ("Architecture", "architecture", "resolve_model"),
    "checkpoints": ("Checkpoint", "load_checkpoint", "save_checkpoint", "shipped_checkpoint", "shipped_models"),
    "training": ("train",),
    # Symmetry: discovered from the graph, proved by test
    "symmetry": ("discover_symmetry", "Symmetry", "Element", "Group", "PinnedAxis", "SymmetryCheck", "PermutationSpec", "min_mass"),
    # Matching
    "matching": (
        "align",
        "Alignment",
        "Matcher",
        "matcher",
        "WeightMatching",
        "ActivationMatching",
        "SpectralMatching",
        "AnnealedMatching",
        "FrankWolfe",
        "SinkhornMatching",
        "CovarianceMatching",
        "StraightThrough",
        "align_many",
        "MultiAlignment",
    ),
    # Paths, profiles, barriers
    "paths": ("LinearPath", "PolygonalPath", "BezierPath", "Path"),
    "evaluation": ("evaluate",),
    "profiles": ("profile_path",),
    "barriers": ("barrier",),
    # Singular vectors, and the whole road in one call
    "spectra": ("singular_alignment",),
    "comparison": ("compare", "Comparison"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """A public name is taken from its module and kept; a module of the package (``workbench.plots``) is imported."""
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"workbench.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in _HOME or name in ("plots", "schema", "states"):
        return importlib.import_module(f"workbench.{name}")
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
