"""Symmetry: which parameter changes leave a model's function alone, discovered from its graph and proved by test.

The road: ``capture`` (export) → ``interpreter`` with ``rules`` over ``trees`` → ``dependence`` (factors over factors) →
``discovery`` (names, layouts) → ``group.Symmetry`` with ``element.Element`` → ``proof`` and ``explanation``.
"""

from workbench.symmetry.action import compare_outputs, move_alone, one_mover
from workbench.symmetry.discovery import discover_symmetry
from workbench.symmetry.element import Element
from workbench.symmetry.group import Group, Member, PinnedAxis, Symmetry, TensorEntry
from workbench.symmetry.incidence import TensorAxis, tensor_axes
from workbench.symmetry.permutation_spec import PermutationSpec
from workbench.symmetry.proof import SymmetryCheck

__all__ = [
    "Element",
    "Group",
    "Member",
    "PermutationSpec",
    "PinnedAxis",
    "Symmetry",
    "SymmetryCheck",
    "TensorAxis",
    "TensorEntry",
    "compare_outputs",
    "discover_symmetry",
    "move_alone",
    "one_mover",
    "tensor_axes",
]
