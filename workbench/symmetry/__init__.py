"""Symmetry: which parameter changes leave a model's function alone, discovered from its graph and proved by test.

The road: ``capture`` (export) → ``interpreter`` with ``rules`` over ``trees`` → ``dependence`` (factors over factors), ``degrees``
(scales and signs), ``linear`` (changes of basis), ``branches`` (exchange of whole branches) → ``discovery`` (names, layouts) →
``group.Symmetry`` with ``element.Element`` → ``proof`` and ``explanation``.
"""

from workbench.symmetry.action import compare_outputs, move_alone, one_mover
from workbench.symmetry.discovery import discover_symmetry
from workbench.symmetry.element import Element
from workbench.symmetry.entries import Group, Member, PinnedAxis, Stack, TensorEntry
from workbench.symmetry.group import Symmetry
from workbench.symmetry.incidence import TensorAxis, tensor_axes
from workbench.symmetry.linear import LinearFactor, change_basis
from workbench.symmetry.mass import MinMass, min_mass
from workbench.symmetry.permutation_spec import PermutationSpec
from workbench.symmetry.proof import SymmetryCheck
from workbench.symmetry.scaling import Scaling

__all__ = [
    "Element",
    "Group",
    "LinearFactor",
    "Member",
    "MinMass",
    "PermutationSpec",
    "PinnedAxis",
    "Scaling",
    "Stack",
    "Symmetry",
    "SymmetryCheck",
    "TensorAxis",
    "TensorEntry",
    "change_basis",
    "compare_outputs",
    "discover_symmetry",
    "min_mass",
    "move_alone",
    "one_mover",
    "tensor_axes",
]
