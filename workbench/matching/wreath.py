"""The move of an outer factor: heads, channel groups, experts, each with an arrangement of its own inside (a wreath product).

Moving copy σ to place β is worth what the best arrangement inside makes of it, so the outer assignment is over inner optima:

    V[β, σ] = fixed[β, σ] + Σ_f max_q ⟨S_f[β, σ], q⟩ ,   S_f[β, σ] = Σ_k A_k[β] q(B_k[σ])ᵀ ,   π = argmax_P Σ_β V[β, π[β]]

All S_f come from one matrix product per tensor. An inner optimum is an assignment, so not all H² of them are solved: V starts as
an upper bound (each row's best entry), the outer assignment is solved, the pairs it chose are made exact, and that is repeated
until it chooses exact ones only; the answer is the same. Where one tensor holds two dependent factors (a grouped convolution, the
output projection of grouped queries) S_f depends on the other: coordinate descent, from the present arrangement and from the one
that the tensors with a single dependent factor give.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from workbench.matching.assignment import assign
from workbench.matching.problem import CostMatrices, MatchingProblem
from workbench.matching.signed import resigned, sign_patterns
from workbench.symmetry.element import Element

ROUNDS = 8
# Score tables of more entries than this (1 GiB) are not kept: a pair's scores are then computed again when they are needed.
KEPT_ENTRIES = 2**27


@dataclass(frozen=True)
class Piece:
    """One block seen from the outer axis: both of shape (H, *inner sizes, rest); inner: the dependent factor of each inner axis;
    exponents: for each inner axis, which of that factor's signs negate the block along it."""

    anchor: Tensor
    moving: Tensor
    inner: tuple[str, ...]
    exponents: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Similarity:
    """A similarity of copies that takes the place of the blocks in ``replaced``: what ``heads`` builds from invariant products.

    tables: dependent factor -> (H, H, n, n) for destination and source copy, destination and source unit; None -> (H, H);
    decided: the dependent factors it arranges; the others in those blocks are arranged afterwards, by their weights.
    """

    replaced: frozenset[int]
    tables: Mapping[str | None, Tensor]
    decided: frozenset[str]


@dataclass(frozen=True)
class Proposal:
    """element: after the move; gain: by the similarity (None: compare true objectives)."""

    element: Element
    gain: float | None


def can_move(problem: MatchingProblem, factor: str) -> bool:
    """Whether the nested assignment covers this factor: it is not itself dependent, and its dependents depend on it alone."""
    groups = problem.symmetry.groups
    return not groups[factor].over and all(groups[name].over == (factor,) for name in problem.dependents[factor])


def separable(problem: MatchingProblem, factor: str) -> bool:
    """Whether one nested assignment finds the best joint move: no block holds two of the dependents, or one of them twice."""
    own = {factor, *problem.dependents[factor]}
    dependents = set(problem.dependents[factor])
    blocks = {index for name in own for index, _ in problem.occurrences[name]}
    return not own & problem.quadratic and all(
        sum(label in dependents for label in problem.blocks[index][0].labels) <= 1 for index in blocks
    )


def propose(
    problem: MatchingProblem,
    factor: str,
    element: Element,
    *,
    only: Collection[str] | None = None,
    similarity: Similarity | None = None,
) -> Proposal:
    """The element after the nested assignment of ``factor`` and its dependents, all other factors held.

    only: count just the blocks whose other factors all lie in it; similarity: what the copies are compared by in place of some
    blocks. A block that holds the factor twice is not linear in it: its gain must be checked.
    """
    skip = similarity.replaced if similarity is not None else frozenset()
    counted = pieces(problem, factor, element, only=only, skip=skip)
    decided = similarity.decided if similarity is not None else frozenset(problem.dependents[factor])
    nested = _Nested(problem, factor, element, counted, decided, similarity.tables if similarity is not None else {})
    outer, inside, gain = nested.solve()
    new = dict(element.permutations)
    new[factor] = outer
    left = [name for name in problem.dependents[factor] if name not in decided]
    if left:
        inside = _rest(pieces(problem, factor, element, only=only), outer, inside, left)
    for name in problem.dependents[factor]:
        new[name] = torch.stack([arrangement[name] for arrangement in inside])
    moved = replace(element, permutations=new)
    for name in problem.dependents[factor]:
        moved = resigned(problem, CostMatrices(problem), name, moved)
    return Proposal(moved, gain if similarity is not None else None)


def assign_nested(
    problem: MatchingProblem, factor: str, current: Element, tables: Mapping[str | None, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The best order of the copies, and the arrangements inside at their destinations, for given scores alone.

    tables: None -> (H, H) for destination and source copy; dependent factor -> (H, H, n, n), then destination and source unit.
    """
    outer, inside, _ = _Nested(problem, factor, current, [], problem.dependents[factor], tables).solve()
    return outer, {name: torch.stack([places[name] for places in inside]) for name in problem.dependents[factor]}


def pieces(
    problem: MatchingProblem,
    factor: str,
    element: Element,
    *,
    only: Collection[str] | None = None,
    skip: Collection[int] = (),
) -> list[Piece]:
    """The blocks of ``factor`` with its axis first and the dependent axes next, moved on every other axis."""
    out = []
    dependents = problem.dependents[factor]
    for index, axis in problem.occurrences[factor]:
        first = problem.blocks[index][0]
        others = {label for label in first.labels if label in problem.symmetry.groups} - {factor, *dependents}
        if index in skip or (only is not None and not others <= set(only)):
            continue
        inner = [d for d, label in enumerate(first.labels) if label in dependents and first.coordinate_of(d, factor) == axis]
        held = problem.moved(index, element, [axis, *inner])
        order = [axis, *inner, *[d for d in range(held.dim()) if d != axis and d not in inner]]
        shape = [held.shape[d] for d in (axis, *inner)]
        names = tuple(first.labels[d] for d in inner)
        signs = tuple(problem.exponents(name, index, d) for name, d in zip(names, inner, strict=True))  # type: ignore[arg-type]
        anchor, moving = (view.permute(order).reshape(*shape, -1) for view in (first.view, held))
        out.append(Piece(anchor, moving, names, signs))  # type: ignore[arg-type]
    return out


class _Scores:
    """S_f for one dependent factor f: for copies β, σ the n × n gains of reading unit j of σ as unit i of β, at best signs."""

    def __init__(self, parts: list[Piece], extra: Tensor | None) -> None:
        self._parts, self._extra = parts, None if extra is None else extra.cpu()
        copies, n = parts[0].anchor.shape[:2] if parts else extra.shape[1:3]  # type: ignore[union-attr]
        kept = copies * copies * n * n <= KEPT_ENTRIES
        rows, self._rows = [], [] if kept else None
        for to in range(copies):
            row = self._compute(to, slice(None))
            # No arrangement is worth more than the best entry of every row, nor than the best of every column.
            rows.append(torch.minimum(row.amax(-1).sum(-1), row.amax(-2).sum(-1)))
            if self._rows is not None:
                self._rows.append(row)
        self.bounds = torch.stack(rows)

    def _compute(self, to: int, source: int | slice) -> Tensor:
        shares: dict[tuple[int, ...], Tensor] = {}
        for part in self._parts:
            a, b = part.anchor[to], part.moving[source]
            product = (a @ b.flatten(0, -2).mT).unflatten(-1, b.shape[:-1])
            product = (product.movedim(0, -2) if product.dim() == 3 else product).cpu()
            signs = part.exponents[0]
            shares[signs] = shares[signs] + product if signs in shares else product
        extra = 0 if self._extra is None else self._extra[to, source]
        if not any(any(signs) for signs in shares):
            return sum(shares.values(), extra)  # type: ignore[return-value]
        patterns = sign_patterns(list(shares)).to(torch.float64)
        return extra + torch.einsum("se,e...->s...", patterns, torch.stack(list(shares.values()))).amax(0)

    def at(self, to: int, source: int) -> Tensor:
        return self._compute(to, source) if self._rows is None else self._rows[to][source]


class _Nested:
    """One outer assignment over inner optima."""

    def __init__(
        self,
        problem: MatchingProblem,
        factor: str,
        element: Element,
        counted: list[Piece],
        decided: Collection[str],
        tables: Mapping[str | None, Tensor],
    ) -> None:
        self.size = problem.symmetry.groups[factor].size
        self.current = element.permutations[factor]
        self.present = {name: element.permutations[name] for name in problem.dependents[factor]}
        self.joint = [piece for piece in counted if len(piece.inner) > 1]
        self.coupled = bool(self.joint)
        self.value = torch.zeros(self.size, self.size, dtype=torch.float64)
        for piece in counted:
            if not piece.inner:
                self.value += (piece.anchor @ piece.moving.mT).cpu()
        if None in tables:
            self.value += tables[None].cpu()
        self.fixed = self.value.clone()
        self.scores = {}
        for name in self.present:
            single = [piece for piece in counted if piece.inner == (name,)]
            if name in decided and (single or name in tables):
                self.scores[name] = _Scores(single, tables.get(name))
                self.value += self.scores[name].bounds
        self.open = [n for n in self.present if n in self.scores or any(n in piece.inner for piece in self.joint)]
        self.inside: dict[tuple[int, int], dict[str, Tensor]] = {}

    def solve(self) -> tuple[Tensor, list[dict[str, Tensor]], float]:
        """The outer permutation, the arrangement at every place, and the gain over the present ones."""
        everything = range(self.size)
        chosen = [(to, int(source)) for to, source in enumerate(self.current)]
        if self.coupled:
            chosen = [(to, source) for to in everything for source in everything]
        while chosen:
            for to, source in chosen:
                self._settle(to, source)
            best = linear_sum_assignment(self.value.numpy(), maximize=True)[1]
            chosen = [(to, int(source)) for to, source in enumerate(best) if (to, int(source)) not in self.inside]
        outer, _ = assign(self.value, self.current)
        now = sum(self._worth(to, int(self.current[to]), {n: p[to] for n, p in self.present.items()}) for to in everything)
        after = sum(float(self.value[to, int(outer[to])]) for to in everything)
        return outer, [self.inside[to, int(outer[to])] for to in everything], after - now

    def _settle(self, to: int, source: int) -> None:
        """Make V[to, source] exact (where coupled: as good as the descent finds it)."""
        present = {name: rows[to] for name, rows in self.present.items()}
        alone = dict(present)
        for name, scores in self.scores.items():
            alone[name], _ = assign(scores.at(to, source), present[name])
        starts = [alone, present] if self.coupled else [alone]
        found = [self._descend(to, source, start) if self.coupled else start for start in starts]
        worths = [self._worth(to, source, arrangement) for arrangement in found]
        best = max(range(len(found)), key=worths.__getitem__)
        self.value[to, source], self.inside[to, source] = worths[best], found[best]

    def _descend(self, to: int, source: int, start: dict[str, Tensor]) -> dict[str, Tensor]:
        extra = {name: scores.at(to, source) for name, scores in self.scores.items()}
        return arrange(self.joint, to, source, start, self.open, extra)

    def _worth(self, to: int, source: int, arrangement: Mapping[str, Tensor]) -> float:
        total = float(self.fixed[to, source])
        for name, scores in self.scores.items():
            total += float(scores.at(to, source).gather(1, arrangement[name].unsqueeze(1)).sum())
        return total + sum(float((p.anchor[to] * _arranged(p.moving[source], p.inner, arrangement)).sum()) for p in self.joint)


def arrange(
    parts: list[Piece],
    to: int,
    source: int,
    start: Mapping[str, Tensor],
    names: Collection[str],
    extra: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The arrangement of copy ``source`` at place ``to`` by coordinate descent over ``names``; ``extra``: scores to add."""
    arrangement = dict(start)
    for _ in range(ROUNDS):
        changed = False
        for name in names:
            score = None if extra is None else extra.get(name)
            for piece in parts:
                for axis, label in enumerate(piece.inner):
                    if label == name:
                        a = piece.anchor[to].movedim(axis, 0).flatten(1)
                        b = _arranged(piece.moving[source], piece.inner, arrangement, axis).movedim(axis, 0).flatten(1)
                        share = (a @ b.mT).cpu()
                        score = share if score is None else score + share
            if score is not None:
                arrangement[name], gain = assign(score, arrangement[name])
                changed = changed or gain > 0
        if not changed or len(names) == 1:
            break
    return arrangement


def _arranged(block: Tensor, inner: tuple[str, ...], arrangement: Mapping[str, Tensor], skip: int | None = None) -> Tensor:
    for axis, name in enumerate(inner):
        if axis != skip:
            block = block.index_select(axis, arrangement[name].to(block.device))
    return block


def _rest(parts: list[Piece], outer: Tensor, inside: list[dict[str, Tensor]], names: list[str]) -> list[dict[str, Tensor]]:
    """The dependent factors that the similarity says nothing of, arranged by their weights at the places now chosen.

    The start of each is what the tensors with a single dependent factor give."""
    single = [(name,) for name in names]
    out = []
    for to, source in enumerate(outer.tolist()):
        alone = arrange([piece for piece in parts if piece.inner in single], to, source, inside[to], names)
        out.append(arrange(parts, to, source, alone, names))
    return out
