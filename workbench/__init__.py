"""workbench: are these trained networks the same solution, up to the symmetries of their architecture?

The names below are the whole main road, in the order one walks it: bring models and data, discover the symmetry, align, prove,
measure the loss along a path, see which singular directions met. ``workbench.plots`` draws what these return and is imported on
its own, so that ``import workbench`` stays light.
"""

from workbench.errors import Cancelled, WorkbenchError
from workbench.progress import Progress, Step

# Models and data
from workbench.tasks import Task, task
from workbench.architectures import Architecture, architecture, resolve_model
from workbench.checkpoints import Checkpoint, load_checkpoint, save_checkpoint, shipped, shipped_checkpoint
from workbench.training import train

# Symmetry: discovered from the graph, proved by test
from workbench.symmetry import Element, Group, PermutationSpec, PinnedAxis, Symmetry, SymmetryCheck, discover_symmetry

# Matching
from workbench.matching import Alignment, Matcher, WeightMatching, align, matcher

# Paths, profiles, barriers
from workbench.paths import BezierPath, LinearPath, Path, PolygonalPath
from workbench.evaluation import evaluate
from workbench.profiles import profile_path
from workbench.barriers import barrier

# Singular vectors, and the whole road in one call
from workbench.spectra import singular_alignment
from workbench.comparison import Comparison, compare

# ruff: noqa: I001, RUF022  (reading order)

__version__ = "0.1.0"
__all__ = [
    "Cancelled",
    "WorkbenchError",
    "Progress",
    "Step",
    "Task",
    "task",
    "Architecture",
    "architecture",
    "resolve_model",
    "Checkpoint",
    "load_checkpoint",
    "save_checkpoint",
    "shipped",
    "shipped_checkpoint",
    "train",
    "Element",
    "Group",
    "PermutationSpec",
    "PinnedAxis",
    "Symmetry",
    "SymmetryCheck",
    "discover_symmetry",
    "Alignment",
    "Matcher",
    "WeightMatching",
    "align",
    "matcher",
    "BezierPath",
    "LinearPath",
    "Path",
    "PolygonalPath",
    "evaluate",
    "profile_path",
    "barrier",
    "singular_alignment",
    "Comparison",
    "compare",
]
