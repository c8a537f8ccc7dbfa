"""Head similarity that no change of basis inside a head can touch.

Inside a head two projections meet only in their product: queries with keys, values with the output projection. Replacing
(X, Y) by (A X, A⁻ᵀ Y), A ∈ GL(d), changes every weight and nothing else, so two heads can be the same and look unrelated. Their
products cannot be told apart by A:

    M = W̃_Qᵀ W̃_K ,   N = W̃_Vᵀ W_O                              (rows of a W: the d units inside a head; W̃ = [W, b])
    ⟨M_A[β], M_B[σ]⟩ = tr( (Q̃_A[β] Q̃_B[σ]ᵀ) (K̃_A[β] K̃_B[σ]ᵀ)ᵀ )      only d × d products, no D × D matrix is formed

A key bias that the proof found dead (softmax ignores it) is left out, as are the biases of queries and keys packed into one
tensor, of which the proof cannot say it. Each kind of product is weighted so that it counts as its
two projections would in a balanced basis (there ‖X‖² = ‖Y‖² = ‖M‖_*): w = 2 √(‖M_A‖_* ‖M_B‖_*) / (‖M_A‖ ‖M_B‖), norms over heads.

Rotary positions: only changes of basis that commute with the rotations are left inside query and key, one scaled rotation per
frequency pair. They are a subgroup of GL(d), so M, the score at distance 0, is still unchanged by all of them; it is coarser than
need be, since it does not say which frequency a direction belongs to. N is not affected.

The pairs are read off the layouts: for heads b, a factor f with one copy per value of b (or, where the inside is pinned, a fixed
stretch beside b in one axis) on exactly two tensors that have more axes. Several query heads per key/value head are a further
dependent factor on one side of a pair; M and N are compared for each of them. With a single key/value head f is shared by all
query heads. The products are unchanged by every smaller freedom too (permutations, the scales of ReLU), so experts made of two
matrices may be compared in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workbench.matching.problem import MatchingProblem
from workbench.matching.wreath import Similarity, can_move
from workbench.symmetry.element import Element


@dataclass(frozen=True)
class Side:
    """One projection: a block, its axes for head, query head in the group (None: it has none) and inside, and its bias's block."""

    block: int
    head: int | None
    row: int | None
    inside: int
    bias: int | None = None


@dataclass(frozen=True)
class HeadPair:
    """Two projections of the heads ``factor`` that meet in the sum over ``inside``; row: the dependent factor kept apart."""

    factor: str
    inside: str
    row: str | None
    left: Side
    right: Side


def head_pairs(problem: MatchingProblem, factor: str) -> tuple[HeadPair, ...]:
    """The pairs of projections of the heads ``factor``, none where the tensors do not pair off."""
    if not can_move(problem, factor) or factor in problem.quadratic:
        return ()
    found = [_pair(problem, factor, label, places) for label, places in _insides(problem, factor).items()]
    pairs = [pair for pair in found if pair is not None]
    if not any(pair.inside in problem.symmetry.groups for pair in pairs):
        return ()  # fixed stretches alone may also be two readers of one flattened axis
    rows = {pair.row for pair in pairs} - {None}
    insides = {pair.inside for pair in pairs}
    return tuple(pairs) if len(rows) <= 1 and not rows & insides else ()


def _insides(problem: MatchingProblem, factor: str) -> dict[str, list[tuple[int, int]]]:
    """What may be summed over inside a head: label -> the (block, axis) pairs where it is."""
    groups = problem.symmetry.groups
    out: dict[str, list[tuple[int, int]]] = {}
    for index, axis in problem.occurrences[factor]:
        block = problem.blocks[index][0]
        for d, label in enumerate(block.labels):
            if d == axis:
                continue
            beside = block.origin[d] == block.origin[axis]
            if label in problem.dependents[factor] or (beside and label in groups and not groups[label].over):
                out[label] = problem.occurrences[label]
            elif beside and label not in groups and block.view.shape[d] > 1:
                out.setdefault(f"a fixed stretch of {block.view.shape[d]}", []).append((index, d))
    return out


def _pair(problem: MatchingProblem, factor: str, inside: str, places: list[tuple[int, int]]) -> HeadPair | None:
    dependents = problem.dependents[factor]
    sides, vectors, rows = [], [], set()
    for index, axis in places:
        block = problem.blocks[index][0]
        if any(block.labels.count(label) > 1 for label in (factor, inside, *dependents)):
            return None
        named = {label: d for d, label in enumerate(block.labels) if label == factor or label in dependents}
        others = [label for label in named if label not in (factor, inside)]
        rows.update(others)
        if len(others) > 1:
            return None
        side = Side(index, named.get(factor), named[others[0]] if others else None, axis)
        if any(block.origin[d] == block.origin[axis] for d in _rest(problem, side)):
            return None  # something else is inside a head too: the sum over this axis alone says nothing
        (sides if _rest(problem, side) else vectors).append(side)
    inside_depends = inside not in problem.symmetry.groups or factor in problem.symmetry.groups[inside].over
    heads = [side.head for side in sides]
    if len(sides) != 2 or len(rows) > 1 or heads == [None, None] or (None not in heads and not inside_depends):
        return None
    biases = _biases(problem, factor, inside, sides, vectors)
    if biases is None:
        return None
    left, right = (replace(side, bias=bias) for side, bias in zip(sides, biases, strict=True))
    return HeadPair(factor, inside, next(iter(rows), None), left, right)


def _rest(problem: MatchingProblem, side: Side) -> list[int]:
    block = problem.blocks[side.block][0]
    return [d for d in range(block.view.dim()) if d not in (side.head, side.row, side.inside) and block.view.shape[d] > 1]


def _biases(problem: MatchingProblem, factor: str, inside: str, sides: list[Side], vectors: list[Side]) -> list[int | None] | None:
    """For each projection the vector added to it: laid out as the projection's rows, of the same module, and the same part of a
    packed tensor. Dead ones are left out. None where a vector is nobody's bias (the gain of a norm): then the two projections
    do not meet in a bare product."""
    proof = problem.symmetry.proof
    dead = {tensor for group, tensor in proof.dead if group in (factor, inside)} if proof is not None else set()
    out: list[int | None] = [None, None]
    for vector in vectors:
        name, part = problem.sources[vector.block]
        if name in dead:
            continue
        owners = []
        for number, side in enumerate(sides):
            weight, at = problem.sources[side.block]
            origin = problem.blocks[side.block][0].origin
            axes = sorted({origin[d] for d in (side.head, side.row, side.inside) if d is not None})
            layouts = problem.symmetry.tensors[weight].layouts
            laid_out_alike = tuple(layouts[axis] for axis in axes) == problem.symmetry.tensors[name].layouts
            if laid_out_alike and weight.rpartition(".")[0] == name.rpartition(".")[0] and part == at:
                owners.append((axes != list(range(len(axes))), number))
        owners.sort()
        if not owners or (len(owners) == 2 and owners[0][0] == owners[1][0]) or out[owners[0][1]] is not None:
            return None
        out[owners[0][1]] = vector.block
    if None not in out and len({problem.sources[index][0] for index in out if index is not None}) == 1:
        return [None, None]  # parts of one packed bias: the proof cannot say that the key's part of it is dead
    return out


def similarity(problem: MatchingProblem, pairs: tuple[HeadPair, ...], element: Element) -> Similarity:
    """Tables of w_M ⟨M_A, M_B⟩ + w_N ⟨N_A, N_B⟩ with B moved on every axis outside the heads, as a cost for ``wreath.propose``."""
    tables: dict[str | None, Tensor] = {}
    for pair in pairs:
        table = _table(problem, pair, element)
        key = pair.row
        tables[key] = tables[key] + table if key in tables else table
    return Similarity(replaced(problem, pairs), tables, rows(pairs))


def rows(pairs: tuple[HeadPair, ...]) -> frozenset[str]:
    """The dependent factors that are arranged with the heads: query heads inside a key/value group."""
    return frozenset(pair.row for pair in pairs if pair.row is not None)


def replaced(problem: MatchingProblem, pairs: tuple[HeadPair, ...]) -> frozenset[int]:
    """The blocks whose weights no longer pull on the heads: the projections, and every vector inside a head."""
    gone = set()
    for pair in pairs:
        gone |= {side.block for side in (pair.left, pair.right)} | {side.bias for side in (pair.left, pair.right)}
        gone |= {index for index, _ in _insides(problem, pair.factor)[pair.inside]}
    return frozenset(gone - {None})


def agreement(problem: MatchingProblem, pairs: tuple[HeadPair, ...], element: Element) -> float:
    """Σ over pairs and heads of w ⟨M_A, π(M_B)⟩: what the order of the heads is chosen by, of the whole ``element``."""
    heads = element.permutations[pairs[0].factor]
    total = 0.0
    for pair in pairs:
        table = _table(problem, pair, element)[torch.arange(len(heads)), heads]
        if pair.row is not None:
            table = table.gather(-1, element.permutations[pair.row].unsqueeze(-1))
        total += float(table.sum())
    return total


def _table(problem: MatchingProblem, pair: HeadPair, element: Element) -> Tensor:
    """(H, H), or (H, H, R, R) with rows, on the CPU."""
    left, right = (_factors(problem, side, element) for side in (pair.left, pair.right))
    copies = problem.symmetry.groups[pair.factor].size
    out = []
    for to in range(copies):
        share = (_products(left, to) * _products(right, to)).sum((-2, -1))
        out.append(share.expand(copies, *share.shape[1:]))
    table = _weight(left, right) * torch.stack(out).cpu()
    return table if pair.row is not None else table[..., 0, 0]


def _factors(problem: MatchingProblem, side: Side, element: Element) -> tuple[Tensor, Tensor]:
    """The projection in A and in B as (H or 1, R or 1, d, rest), B moved on the axes in rest only; the bias is a last column."""
    first = problem.blocks[side.block][0]
    held = problem.moved(side.block, element, [d for d in (side.head, side.row, side.inside) if d is not None])
    out = [_ordered(view, side.head, side.row, side.inside) for view in (first.view, held)]
    if side.bias is not None:
        bias = problem.blocks[side.bias]
        labels, own = bias[0].labels, first.labels
        axes = [None if d is None else labels.index(own[d]) for d in (side.head, side.row)]
        inside = next(d for d in range(len(labels)) if d not in axes and bias[0].view.shape[d] == out[0].shape[2])
        out = [torch.cat([w, _ordered(b.view, *axes, inside)], -1) for w, b in zip(out, bias, strict=True)]
    return out[0], out[1]


def _ordered(view: Tensor, head: int | None, row: int | None, inside: int) -> Tensor:
    for missing in (head, row):
        view = view.unsqueeze(-1) if missing is None else view
    extra = iter(range(view.dim() - (head is None) - (row is None), view.dim()))
    front = [next(extra) if d is None else d for d in (head, row)] + [inside]
    rest = [d for d in range(view.dim()) if d not in front]
    return view.permute(*front, *rest).flatten(3) if rest else view.permute(*front).unsqueeze(-1)


def _products(pair: tuple[Tensor, Tensor], to: int) -> Tensor:
    """X_A[to, r] X_B[σ, r']ᵀ for all σ, r, r': (H or 1, R or 1, R or 1, d, d)."""
    a, b = pair
    a = a[to if a.shape[0] > 1 else 0]
    product = a.flatten(0, 1) @ b.flatten(0, 2).mT
    return product.unflatten(-1, b.shape[:3]).unflatten(0, a.shape[:2]).permute(2, 0, 3, 1, 4)


def _weight(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> float:
    nuclear, norm = 1.0, 1.0
    for x, y in zip(left, right, strict=True):
        # M = XᵀY has the singular values of the d × d core SᵀT, where S Sᵀ = X Xᵀ and T Tᵀ = Y Yᵀ.
        core = _root(x @ x.mT) @ _root(y @ y.mT)
        values = torch.linalg.svdvals(core)
        nuclear *= float(values.sum())
        norm *= float(values.square().sum().sqrt())
    return 2 * nuclear**0.5 / norm if norm > 0 else 0.0


def _root(gram: Tensor) -> Tensor:
    """The symmetric root of a positive semi-definite matrix."""
    values, vectors = torch.linalg.eigh(gram)
    return vectors * values.clamp_min(0).sqrt().unsqueeze(-2) @ vectors.mT
