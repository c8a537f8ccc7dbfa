"""The linear assignment problem, with a rule for ties: a unit moves only where that gains something.

    perm = argmax_P Σ_i score[i, perm[i]]

``score[i, j]`` is what is gained when destination unit i reads source unit j, so the answer is a "take" array:
``(P w)[i] = w[perm[i]]``.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, from_numpy

from workbench.errors import WorkbenchError

# scipy addresses the matrix with 32-bit integers: above this size it crashes instead of raising.
LARGEST = 46_340

# Gains below this share of the score's size are rounding of a float64 sum of n products.
ROUNDING = 1e-13


def assign(score: Tensor, current: Tensor) -> tuple[Tensor, float]:
    """The best assignment that differs from ``current`` only where it gains, and its gain (``current`` and 0.0 where none gains).

    score: (n, n), any device, finite; current: (n,) int64 on the CPU. The new and the old assignment differ by disjoint cycles,
    each of which could be undone alone; a cycle whose gain is within rounding (identical or dead units) is undone.
    """
    if score.shape[0] > LARGEST:
        raise WorkbenchError(f"A factor of {score.shape[0]} units is too large to assign", expected=f"at most {LARGEST} units")
    values = score.detach().cpu().numpy().astype(np.float64, copy=False)
    old = current.numpy()
    new = linear_sum_assignment(values, maximize=True)[1].astype(np.int64)
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


def assign_copies(score: Tensor, old: Tensor) -> tuple[Tensor, float]:
    """``assign`` for every copy of a factor; ``old`` itself comes back where nothing gains."""
    if old.dim() == 1:
        return assign(score, old)
    rows, total = [], 0.0
    for values, current in zip(score.flatten(0, -3), old.flatten(0, -2), strict=True):
        row, gain = assign(values, current)
        rows.append(row)
        total += gain
    return (torch.stack(rows).reshape(old.shape), total) if total > 0 else (old, 0.0)


def _cycles(nexts: np.ndarray) -> np.ndarray:
    """For a permutation i -> nexts[i], the number of the cycle that each i lies on."""
    labels = np.full(len(nexts), -1, dtype=np.int64)
    steps = nexts.tolist()
    count = 0
    for start in range(len(steps)):
        at = start
        if labels[at] >= 0:
            continue
        while labels[at] < 0:
            labels[at] = count
            at = steps[at]
        count += 1
    return labels
