"""The move of an outer factor: heads, channel groups, experts, each with an arrangement of its own inside (a wreath product).

Moving copy σ to place β is worth what the best arrangement inside makes of it, so the outer assignment is over inner optima:

    V[β, σ] = max_q Σ ⟨A[β], q(B[σ])⟩ ,   π = argmax_P Σ_β V[β, π[β]]

With one dependent factor per block the inner maximum is one assignment; with several (a grouped convolution's inputs and
outputs) it is found by coordinate descent, a few rounds, from the present arrangement of β.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.matching.assignment import assign
from workbench.matching.problem import MatchingProblem, moved
from workbench.symmetry.element import Element

ROUNDS = 4


@dataclass(frozen=True)
class _Piece:
    """One block seen from the outer axis: both of shape (H, *inner sizes, rest); inner: the dependent factor of each inner axis."""

    anchor: Tensor
    moving: Tensor
    inner: tuple[str, ...]


def can_move(problem: MatchingProblem, factor: str) -> bool:
    """Whether the nested assignment covers this factor: it is not itself dependent, and its dependents depend on it alone."""
    groups = problem.symmetry.groups
    return not groups[factor].over and all(groups[name].over == (factor,) for name in problem.dependents[factor])


def propose(problem: MatchingProblem, factor: str, element: Element) -> Element:
    """The element after the nested assignment of ``factor`` and its dependents, all other factors held. Its gain is not promised
    where a block holds the factor twice: compare true objectives."""
    pieces = _pieces(problem, factor, element)
    size = problem.symmetry.groups[factor].size
    dependents = problem.dependents[factor]
    present = {name: element.permutations[name] for name in dependents}
    fixed = sum(piece.anchor.flatten(1) @ piece.moving.flatten(1).mT for piece in pieces if not piece.inner)
    value = torch.zeros(size, size, dtype=torch.float64) + (fixed.cpu() if isinstance(fixed, Tensor) else 0.0)
    inside: dict[tuple[int, int], dict[str, Tensor]] = {}
    for to in range(size):
        for source in range(size):
            guess = {name: present[name][to] for name in dependents}
            best, arrangement = _inner([p for p in pieces if p.inner], to, source, guess)
            value[to, source] += best
            inside[to, source] = arrangement
    outer, _ = assign(value, element.permutations[factor])
    new = dict(element.permutations)
    new[factor] = outer
    for name in dependents:
        new[name] = torch.stack([inside[to, int(outer[to])][name] for to in range(size)])
    return Element(new, element.over)


def _pieces(problem: MatchingProblem, factor: str, element: Element) -> list[_Piece]:
    out = []
    for index, axis in problem.occurrences[factor]:
        first, second = problem.blocks[index]
        inner = [
            d
            for d, label in enumerate(first.labels)
            if label in problem.dependents[factor] and first.coordinate_of(d, factor) == axis
        ]
        held = moved(second, element, [axis, *inner])
        rest = [d for d in range(held.dim()) if d != axis and d not in inner]
        order = [axis, *inner, *rest]
        shape = [held.shape[d] for d in (axis, *inner)]
        out.append(
            _Piece(
                first.view.permute(order).reshape(*shape, -1),
                held.permute(order).reshape(*shape, -1),
                tuple(first.labels[d] for d in inner),  # type: ignore[misc]
            )
        )
    return out


def _arranged(block: Tensor, inner: tuple[str, ...], arrangement: dict[str, Tensor], skip: int | None = None) -> Tensor:
    for axis, name in enumerate(inner):
        if axis != skip:
            block = block.index_select(axis, arrangement[name].to(block.device))
    return block


def _inner(pieces: list[_Piece], to: int, source: int, guess: dict[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
    """The best arrangement of copy ``source`` at place ``to`` and its worth."""
    arrangement = dict(guess)
    coupled = any(len(piece.inner) > 1 for piece in pieces)
    for _ in range(ROUNDS if coupled else 1):
        changed = False
        for name in arrangement:
            score = None
            for piece in pieces:
                for axis, label in enumerate(piece.inner):
                    if label == name:
                        a = piece.anchor[to].movedim(axis, 0).flatten(1)
                        b = _arranged(piece.moving[source], piece.inner, arrangement, axis).movedim(axis, 0).flatten(1)
                        score = a @ b.mT if score is None else score + a @ b.mT
            if score is not None:
                new, gain = assign(score, arrangement[name])
                changed = changed or gain > 0
                arrangement[name] = new
        if not changed:
            break
    worth = sum(float((p.anchor[to] * _arranged(p.moving[source], p.inner, arrangement)).sum()) for p in pieces)
    return worth, arrangement
