"""Signed matching: permutations and signs in one assignment, for factors whose units may also be negated.

    π, s = argmax Σ_i s_i C[i, π(i)]        =  assignment on |C|, s_i = sign of the entry chosen

More generally a sign acts on some of a factor's tensors and not on others, and there may be several independent ones (each
channel of a residual stream in all its readers and writers, or in one norm and its readers). With one score C_e for each set of
tensors on which signs act alike, and χ_σ(e) = ±1 what sign pattern σ does to set e,

    value[i, j] = max_σ Σ_e χ_σ(e) C_e[i, j] ,      π = argmax_P ⟨value, P⟩ ,      σ_i the pattern that value[i, π(i)] came from.

For one sign that acts everywhere this is |C|; with scores C₀ (not touched) and C₁ (negated) it is C₀ + |C₁|.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.matching.assignment import ROUNDING, assign

ONE_SIGN = ((1,), (-1,))


def sign_patterns(exponents: Sequence[Sequence[int]]) -> Tensor:
    """χ of shape (2^K, E): what each of the 2^K choices of K signs does to each of E sets of tensors, +1 or −1.

    exponents: for each set, the K exponents (0 or 1) with which the signs act on it. Row 0 is "no sign".
    """
    powers = torch.as_tensor(exponents, dtype=torch.int64)
    if powers.dim() != 2 or bool(((powers != 0) & (powers != 1)).any()):
        raise WorkbenchError("The exponents of the signs are not rows of zeros and ones", expected="one row of K for each set")
    chosen = torch.cartesian_prod(*[torch.arange(2)] * powers.shape[1]).reshape(-1, powers.shape[1])
    return 1 - 2 * ((chosen @ powers.T) % 2)


def assign_signed(scores: Tensor, patterns: Tensor, permutation: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, float]:
    """The best permutation and sign pattern of every unit, and the gain over the present ones.

    scores: (E, n, n), one for each set of tensors that signs act on alike; patterns: (S, E) of ±1, see ``sign_patterns``
    (``ONE_SIGN`` for one sign on everything); permutation: (n,), the present one; chosen: (n,), the row of ``patterns`` that each
    destination unit has now. A unit changes place or sign only where that gains more than rounding; where nothing gains, the
    arguments come back with gain 0.
    """
    values = torch.einsum("se,eij->sij", patterns.to(scores.dtype), scores).cpu()
    best, which = values.max(0)
    rows = torch.arange(len(permutation))
    new, _ = assign(best, permutation)
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


@dataclass(frozen=True)
class SignedChoice:
    """permutations, patterns: factor -> (n,) int64; patterns are rows of that factor's ``patterns``."""

    permutations: Mapping[str, Tensor]
    patterns: Mapping[str, Tensor]


class SignedProblem(Protocol):
    """What the descent needs to know of two models: factors in visiting order, their sign patterns, and two functions.

    scores: with all other factors held, the (E, n, n) scores of one factor, in which the objective is linear.
    """

    factors: Sequence[str]
    sign_patterns: Mapping[str, Tensor]

    def scores(self, factor: str, choice: SignedChoice) -> Tensor: ...

    def objective(self, choice: SignedChoice) -> float: ...


@dataclass(frozen=True)
class SignedMatch:
    """choice: a local optimum where ``converged``; objectives: after every sweep, the start first."""

    choice: SignedChoice
    objectives: tuple[float, ...]
    converged: bool


def descend_signed(
    problem: SignedProblem, start: SignedChoice, *, generator: torch.Generator, max_sweeps: int = 100, tolerance: float = 1e-9
) -> SignedMatch:
    """Coordinate descent: one signed assignment after another in a random order, until no factor gains more than
    tolerance · max(1, |objective|)."""
    choice, objectives = start, [problem.objective(start)]
    for _ in range(max_sweeps):
        changed = False
        for index in torch.randperm(len(problem.factors), generator=generator).tolist():
            name = problem.factors[index]
            permutation, pattern = choice.permutations[name], choice.patterns[name]
            score = problem.scores(name, choice)
            new, signs, gain = assign_signed(score, problem.sign_patterns[name], permutation, pattern)
            if gain > tolerance * max(1.0, abs(objectives[-1])):
                choice = SignedChoice({**choice.permutations, name: new}, {**choice.patterns, name: signs})
                changed = True
        objectives.append(problem.objective(choice))
        if not changed:
            return SignedMatch(choice, tuple(objectives), converged=True)
    return SignedMatch(choice, tuple(objectives), converged=False)
