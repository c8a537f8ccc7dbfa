"""Dependent factors (the wreath upgrade)."""

from __future__ import annotations

from workbench.symmetry.trees import Atom


def dependent_factors(walk) -> dict[Atom, tuple[Atom, ...]]:
    return {}
