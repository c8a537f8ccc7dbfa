"""Signed matching: permutations and signs in one assignment, for factors whose units may also be negated.

    π, s = argmax Σ_i s_i C[i, π(i)]        =  assignment on |C|, s_i = sign of the entry chosen

More generally a sign acts on some of a factor's tensors and not on others, and there may be several independent ones (each
channel of a residual stream in all its readers and writers, or in one norm and its readers). With one score C_e for each set of
tensors on which signs act alike, and χ_σ(e) = ±1 what sign pattern σ does to set e,

    value[i, j] = max_σ Σ_e χ_σ(e) C_e[i, j] ,      π = argmax_P ⟨value, P⟩ ,      σ_i the pattern that value[i, π(i)] came from.

For one sign that acts everywhere this is |C|; with scores C₀ (not touched) and C₁ (negated) it is C₀ + |C₁|.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.matching.assignment import ROUNDING, Assigner, assign, assign_copies
from workbench.matching.problem import CostMatrices, MatchingProblem
from workbench.symmetry.element import Element


def sign_patterns(exponents: Sequence[Sequence[int]]) -> Tensor:
    """χ of shape (2^K, E): what each of the 2^K choices of K signs does to each of E sets of tensors, +1 or −1.

    exponents: for each set, the K exponents (0 or 1) with which the signs act on it. Row 0 is "no sign".
    """
    powers = torch.as_tensor(exponents, dtype=torch.int64)
    if powers.dim() != 2 or bool(((powers != 0) & (powers != 1)).any()):
        raise WorkbenchError("The exponents of the signs are not rows of zeros and ones", expected="one row of K for each set")
    chosen = torch.cartesian_prod(*[torch.arange(2)] * powers.shape[1]).reshape(-1, powers.shape[1])
    return 1 - 2 * ((chosen @ powers.T) % 2)


def assign_signed(
    scores: Tensor,
    patterns: Tensor,
    permutation: Tensor,
    chosen: Tensor,
    *,
    assigner: Assigner | None = None,
    key: Hashable = None,
) -> tuple[Tensor, Tensor, float]:
    """The best permutation and sign pattern of every unit, and the gain over the present ones.

    scores: (E, n, n), one for each set of tensors that signs act on alike; patterns: (S, E) of ±1, see ``sign_patterns``
    (one sign on everything: [[1], [−1]]); permutation: (n,), the present one; chosen: (n,), the row of ``patterns`` that each
    destination unit has now. A unit changes place or sign only where that gains more than rounding; where nothing gains, the
    arguments come back with gain 0.
    """
    values = torch.einsum("se,eij->sij", patterns.to(scores.dtype), scores).cpu()
    best, which = values.max(0)
    rows = torch.arange(len(permutation))
    new, _ = assign(best, permutation, assigner=assigner, key=key)
    now = values[chosen, rows, permutation]
    pattern = which[rows, new]
    # At the same place a sign is kept unless another one is better: an entry of 0 has no sign of its own.
    floor = ROUNDING * float(best[rows, new].abs().sum() + now.abs().sum())
    kept = (new == permutation) & (best[rows, new] - now <= floor)
    pattern = torch.where(kept, chosen, pattern)
    gain = float((values[pattern, rows, new] - now).sum())
    if gain <= floor:
        return permutation, chosen, 0.0
    return new, pattern, gain


def solve(
    problem: MatchingProblem,
    costs: CostMatrices,
    name: str,
    element: Element,
    *,
    only: set[str] | None = None,
    assigner: Assigner | None = None,
) -> tuple[Element, float]:
    """``element`` with the best arrangement, and the best signs, of the units of one factor, all others held; and the gain.

    The gain is exact where the factor is not quadratic. only: see ``CostMatrices.of``; assigner: see ``assign``. The element itself
    comes back, with gain 0, where nothing gains.
    """
    old = element.permutations[name]
    shares = costs.by_signs(name, element, only=only)
    if not shares:
        return element, 0.0
    signs = problem.sign_names[name]
    if not signs:
        new, gain = assign_copies(sum(shares.values()), old, assigner=assigner, key=name)
        return (element, 0.0) if new is old else (replace(element, permutations={**element.permutations, name: new}), gain)
    scores, patterns = torch.stack(list(shares.values())), sign_patterns(list(shares))
    chosen, total = _chosen(element, signs, old.shape), 0.0
    units, kinds = old.clone(), chosen.clone()
    for copy in np.ndindex(old.shape[:-1]):
        units[copy], kinds[copy], gain = assign_signed(
            scores[(slice(None), *copy)], patterns, old[copy], chosen[copy], assigner=assigner, key=(name, copy)
        )
        total += gain
    if total <= 0:
        return element, 0.0
    return _with_signs(replace(element, permutations={**element.permutations, name: units}), signs, kinds), total


def resigned(problem: MatchingProblem, costs: CostMatrices, name: str, element: Element) -> Element:
    """``element`` with the best signs for the units of one factor where they stand now."""
    signs, shares = problem.sign_names[name], costs.by_signs(name, element)
    if not signs or not shares:
        return element
    at = element.permutations[name].unsqueeze(-1)
    here = torch.stack([share.cpu().gather(-1, at).squeeze(-1) for share in shares.values()])
    values = torch.einsum("se,e...->s...", sign_patterns(list(shares)).to(here.dtype), here)
    return _with_signs(element, signs, values.argmax(0))


def _chosen(element: Element, signs: Sequence[str], shape: Sequence[int]) -> Tensor:
    """Of every unit, the row of ``sign_patterns`` that its signs are: the first sign is the highest binary digit."""
    row = torch.zeros(shape, dtype=torch.int64)
    for name in signs:
        row = 2 * row + (element.scales[name] < 0 if name in element.scales else 0)
    return row


def _with_signs(element: Element, signs: Sequence[str], rows: Tensor) -> Element:
    digits = {name: (rows >> (len(signs) - 1 - number)) & 1 for number, name in enumerate(signs)}
    return replace(element, scales={**element.scales, **{name: 1.0 - 2.0 * digit.double() for name, digit in digits.items()}})
