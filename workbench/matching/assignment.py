"""The linear assignment problem, with a rule for ties: a unit moves only where that gains something.

    perm = argmax_P Σ_i score[i, perm[i]]

``score[i, j]`` is what is gained when destination unit i reads source unit j, so the answer is a "take" array:
``(P w)[i] = w[perm[i]]``. ``Assigner`` chooses who solves it and remembers what makes the next, related problem cheap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, from_numpy

from workbench.errors import WorkbenchError
from workbench.matching import lap
from workbench.matching.auction import auction

# scipy addresses the matrix with 32-bit integers: above this size it crashes instead of raising.
LARGEST = 46_340

# Gains below this share of the score's size are rounding of a float64 sum of n products.
ROUNDING = 1e-13

# Below the first size SciPy is done before numba is imported; from the second one on a GPU, the parallel auction bids first.
COMPILED, AUCTIONED = 128, 4096

SOLVERS = ("auto", "scipy", "jv", "auction")
Solver = Literal["auto", "scipy", "jv", "auction"]


class Assigner:
    """Solves assignments, and keeps the column potentials of every ``key`` for the next one.

    solver: "scipy"; "jv": shortest augmenting paths with a warm start (``lap``, compiled by numba); "auction": bids on the device
    of the scores first (``auction``), the rest by "jv", exact; "auto": "auction" for 4096 units and more on a GPU, else "jv" for
    128 and more where numba is installed, else "scipy". All give an optimal assignment. solved: which of them ran, how often.
    """

    def __init__(self, solver: Solver = "auto") -> None:
        if solver not in SOLVERS:
            raise WorkbenchError(f"solver is {solver!r}", expected=f"one of {', '.join(SOLVERS)}")
        if solver == "jv" and not lap.available():
            raise WorkbenchError(
                "The solver 'jv' needs numba, which is not installed", next_step="pip install numba, or solver='scipy'"
            )
        self.solver = solver
        self.solved: Counter[str] = Counter()
        self._potentials: dict[Hashable, np.ndarray] = {}

    def best(self, score: Tensor, current: np.ndarray, key: Hashable = None) -> tuple[np.ndarray, np.ndarray]:
        """The scores as float64 on the CPU, and the best assignment."""
        chosen = self._chosen(score)
        known = self._potentials.get(key) if key is not None else None
        if chosen == "auction":
            prices = None if known is None else torch.from_numpy(-known).to(score)
            bids = auction(score.detach(), prices=prices, gap=1e-4, enough=0.98, max_rounds=2000)
            known, current = -bids.prices.double().cpu().numpy(), bids.columns.numpy()
        values = score.detach().cpu().numpy().astype(np.float64, copy=False)
        self.solved[chosen] += 1
        if chosen == "scipy" or not lap.available():
            _require_size(len(values))
            return values, linear_sum_assignment(values, maximize=True)[1].astype(np.int64)
        solution = lap.solve_assignment(-values, potentials=known, columns=current)
        if key is not None:
            self._potentials[key] = solution.potentials
        return values, solution.columns

    def _chosen(self, score: Tensor) -> str:
        if self.solver != "auto":
            return self.solver
        if score.is_cuda and len(score) >= AUCTIONED:
            return "auction"
        return "jv" if len(score) >= COMPILED and lap.available() else "scipy"

    @property
    def words(self) -> str:
        """Who solved how many assignments."""
        names = {"scipy": "SciPy", "jv": "warm-started shortest augmenting paths", "auction": "auction, then augmenting paths"}
        return ", ".join(f"{count} assignments by {names[name]}" for name, count in sorted(self.solved.items()))


def _require_size(n: int) -> None:
    if n > LARGEST:
        raise WorkbenchError(
            f"A factor of {n} units is too large to assign by SciPy",
            expected=f"at most {LARGEST} units",
            next_step="pip install numba, and solver='auto'",
        )


def assign(
    score: Tensor, current: Tensor, *, assigner: Assigner | None = None, key: Hashable = None
) -> tuple[Tensor, float]:
    """The best assignment that differs from ``current`` only where it gains, and its gain (``current`` and 0.0 where none gains).

    score: (n, n), any device, finite; current: (n,) int64 on the CPU. The new and the old assignment differ by disjoint cycles,
    each of which could be undone alone; a cycle whose gain is within rounding (identical or dead units) is undone.
    assigner, key: who solves it, and under which name its potentials are kept (default: SciPy, nothing is kept).
    """
    old = current.numpy()
    values, new = (assigner or Assigner("scipy")).best(score, old, key)
    if np.array_equal(new, old):
        return current, 0.0
    rows = np.arange(len(old))
    gains = values[rows, new] - values[rows, old]
    floor = ROUNDING * max(float(np.abs(values[rows, new]).sum()), float(np.abs(values[rows, old]).sum()))
    position = np.argsort(old)
    nexts = position[new]
    labels = _cycles(nexts)
    by_cycle = np.bincount(labels, weights=gains)
    kept = by_cycle[labels] > floor
    if not kept.any():
        return current, 0.0
    return from_numpy(np.where(kept, new, old)), float(gains[kept].sum())


def assign_copies(
    score: Tensor, old: Tensor, *, assigner: Assigner | None = None, key: Hashable = None
) -> tuple[Tensor, float]:
    """``assign`` for every copy of a factor; ``old`` itself comes back where nothing gains."""
    if old.dim() == 1:
        return assign(score, old, assigner=assigner, key=key)
    rows, total = [], 0.0
    for number, (values, current) in enumerate(zip(score.flatten(0, -3), old.flatten(0, -2), strict=True)):
        row, gain = assign(values, current, assigner=assigner, key=(key, number))
        rows.append(row)
        total += gain
    return (torch.stack(rows).reshape(old.shape), total) if total > 0 else (old, 0.0)


def _cycles(nexts: np.ndarray) -> np.ndarray:
    """For a permutation i -> nexts[i], the least member of the cycle that each i lies on, by doubling the stride."""
    labels = np.arange(len(nexts))
    for _ in range(max(1, len(nexts).bit_length())):
        labels = np.minimum(labels, labels[nexts])
        nexts = nexts[nexts]
    return labels
