"""The nested assignment pair by pair: the plain way, as an oracle for the tests and to measure against."""

from __future__ import annotations

import torch

from workbench.matching import MatchingProblem, wreath
from workbench.matching.assignment import assign
from workbench.symmetry import Element, Symmetry


def pair_by_pair(problem: MatchingProblem, factor: str, element: Element) -> Element:
    """max over inner arrangements for every (place, copy), then the outer assignment. One dependent factor per tensor."""
    parts = wreath.pieces(problem, factor, element)
    dependents = problem.dependents[factor]
    size = problem.symmetry.groups[factor].size
    value = torch.zeros(size, size, dtype=torch.float64)
    inside = {}
    for to in range(size):
        for source in range(size):
            arrangement = {}
            for name in dependents:
                score = sum(p.anchor[to] @ p.moving[source].mT for p in parts if p.inner == (name,))
                arrangement[name], _ = assign(score, element.permutations[name][to])
            for part in parts:
                rows = part.moving[source]
                rows = rows[arrangement[part.inner[0]]] if part.inner else rows
                value[to, source] += float((part.anchor[to] * rows).sum())
            inside[to, source] = arrangement
    outer, _ = assign(value, element.permutations[factor])
    new = {**element.permutations, factor: outer}
    for name in dependents:
        new[name] = torch.stack([inside[to, int(outer[to])][name] for to in range(size)])
    return Element(new, element.over)


def outer_factor(symmetry: Symmetry) -> str:
    return next(name for name in symmetry.groups if any(name in group.over for group in symmetry.groups.values()))
