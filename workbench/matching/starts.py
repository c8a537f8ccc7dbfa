"""Where weight matching begins: an element built outwards from what is fixed."""

from __future__ import annotations

from workbench.matching import wreath
from workbench.matching.problem import CostMatrices, MatchingProblem
from workbench.matching.signed import solve
from workbench.symmetry.element import Element


def anchored_start(problem: MatchingProblem) -> Element:
    """A start built from what is fixed: each factor in turn is matched on the blocks whose other factors are already matched.

    The factor with the largest share of such blocks (by squared norm) comes first, so a residual stream starts from stem, head
    and norms, and the inner factors follow. An outer factor and its dependents are matched together.
    """
    element, costs = problem.symmetry.identity(), CostMatrices(problem)
    together = {name for name in problem.symmetry.groups if problem.dependents[name] and wreath.can_move(problem, name)}
    covered = {dependent for name in together for dependent in problem.dependents[name]}
    left = {n for n, places in problem.occurrences.items() if places and n not in covered}
    left -= {name for name in left if problem.dependents[name] and name not in together}
    known = set(problem.symmetry.groups) - left - covered
    while left:
        name = max(sorted(left), key=lambda factor: _anchored_share(problem, factor, known))
        if name in together:
            element = wreath.propose(problem, name, element, only=known).element
        else:
            element, _ = solve(problem, costs, name, element, only=known)
        left.discard(name)
        known |= {name, *problem.dependents[name]}
    return element


def _anchored_share(problem: MatchingProblem, factor: str, known: set[str]) -> float:
    anchored = total = 0.0
    own = {factor, *problem.dependents[factor]}
    for index, axis in problem.occurrences[factor]:
        block = problem.blocks[index][0]
        norm = float(block.view.square().sum())
        total += norm
        others = {label for d, label in enumerate(block.labels) if d != axis and label in problem.symmetry.groups} - own
        anchored += norm if others <= known else 0.0
    return anchored / total if total else 0.0
