"""The linear assignment problem by shortest augmenting paths, with a warm start (Jonker and Volgenant, Computing 38, 1987).

    minimise Σ_i c[i, x(i)] over permutations x        dual: Σ_i u_i + Σ_j v_j  with  u_i + v_j ≤ c[i, j]

Any column potentials v are a start: u_i = min_j (c[i, j] − v_j) is the best that goes with them, and a row may keep its column
where that is its minimum. Coordinate descent solves one factor's problem again and again with costs that change little, so the
potentials of the last solve leave only a few rows to be augmented. The compiled core needs numba, which is imported on first use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from workbench.errors import WorkbenchError

_LOCK = threading.Lock()


@dataclass(frozen=True)
class Solution:
    """columns: x, int64; potentials: v, float64, for the next solve; value: Σ c[i, x(i)]; gap: value − dual value, ≥ 0 up to
    rounding and the proof that x is optimal."""

    columns: np.ndarray
    potentials: np.ndarray
    value: float
    gap: float


def solve_assignment(
    cost: np.ndarray, *, potentials: np.ndarray | None = None, columns: np.ndarray | None = None
) -> Solution:
    """The permutation of least cost, optimal whatever the start.

    cost: (n, n), float32 or float64, finite; potentials: (n,) column potentials of a related problem (ignored where not finite);
    columns: (n,) its solution. Raises ``WorkbenchError`` for another shape and for costs that are not finite.
    """
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise WorkbenchError(f"The costs have shape {cost.shape}", expected="a square matrix")
    if cost.dtype not in (np.float32, np.float64):
        cost = cost.astype(np.float64)
    if not np.isfinite(cost).all():
        bad = int((~np.isfinite(cost)).sum())
        raise WorkbenchError(f"{bad} of {cost.size} costs are NaN or infinite", expected="finite costs")
    n = cost.shape[0]
    if n == 0:
        empty = np.zeros(0)
        return Solution(empty.astype(np.int64), empty, 0.0, 0.0)
    warm = potentials is not None and potentials.shape == (n,) and bool(np.isfinite(potentials).all())
    v = potentials.astype(np.float64) if warm else np.zeros(n)  # type: ignore[union-attr]
    x = np.full(n, -1, dtype=np.int64)
    if warm and columns is not None and np.array_equal(np.sort(columns), np.arange(n)):
        x[:] = columns
    value, dual = _core()(np.ascontiguousarray(cost), v, x, warm)
    return Solution(x, v, value, value - dual)


def available() -> bool:
    """Whether numba can be imported here."""
    from importlib.util import find_spec

    return find_spec("numba") is not None


@cache
def _compiled() -> Callable[..., Any]:
    import numba

    options = {"nogil": True, "fastmath": False, "boundscheck": False}
    try:
        return numba.njit(cache=True, **options)(_augment)
    except RuntimeError:  # nowhere to keep compiled code: compile in every process
        return numba.njit(**options)(_augment)


def _core() -> Callable[..., Any]:
    with _LOCK:  # two threads must not compile at once
        return _compiled()


def _augment(cost, v, x, warm):  # pragma: no cover (compiled)
    """v: column potentials, changed; x: row -> column or −1, changed. Returns the value of x and that of the dual."""
    n = cost.shape[0]
    y = np.full(n, -1, dtype=np.int64)  # column -> row
    free = np.empty(n, dtype=np.int64)
    count = 0
    if not warm:
        # Column reduction: every column's least entry is its potential, and its row's column where that row has none yet.
        least = np.zeros(n, dtype=np.int64)
        for j in range(n):
            v[j] = cost[0, j]
        for i in range(1, n):
            for j in range(n):
                if cost[i, j] < v[j]:
                    v[j] = cost[i, j]
                    least[j] = i
        for j in range(n - 1, -1, -1):
            if x[least[j]] < 0:
                x[least[j]] = j
                y[j] = least[j]
    else:
        # A row keeps its column where that is still its minimum.
        for i in range(n):
            j = x[i]
            if j >= 0:
                best = cost[i, j] - v[j]
                for k in range(n):
                    if cost[i, k] - v[k] < best:
                        x[i] = -1
                        break
                if x[i] >= 0:
                    y[j] = i
    for i in range(n):
        if x[i] < 0:
            free[count] = i
            count += 1
    # Augmenting row reduction: a free row takes its least column and lowers that column's potential to its second least.
    k = 0
    left = 0
    before = count
    budget = 2 * n  # a row may be driven out many times for little; shortest paths finish what is left
    while k < before:
        i = free[k]
        k += 1
        first, second = np.inf, np.inf
        j1, j2 = -1, -1
        for j in range(n):
            h = cost[i, j] - v[j]
            if h < second:
                if h < first:
                    second, j2 = first, j1
                    first, j1 = h, j
                else:
                    second, j2 = h, j
        if j2 < 0:
            j2, second = j1, first
        gone = y[j1]
        lowers = first < second
        if lowers:
            v[j1] -= second - first
        elif gone >= 0:
            j1 = j2
            gone = y[j1]
        x[i] = j1
        y[j1] = i
        if gone >= 0:
            x[gone] = -1
            budget -= 1
            if lowers and v[j1] < v[j1] + (second - first) and budget > 0:
                k -= 1
                free[k] = gone
            else:
                free[left] = gone
                left += 1
    count = left
    # Shortest augmenting paths for what is left.
    distance = np.empty(n)
    previous = np.empty(n, dtype=np.int64)
    order = np.empty(n, dtype=np.int64)
    waiting = np.empty(n)
    bound = np.empty(n)
    for f in range(count):
        start = free[f]
        for j in range(n):
            distance[j] = cost[start, j] - v[j]
            previous[j] = start
            waiting[j] = distance[j]
            bound[j] = distance[j]
        done = 0
        end = -1
        least_distance = 0.0
        while end < 0:
            least_distance = waiting[0]
            for j in range(n):
                if waiting[j] < least_distance:
                    least_distance = waiting[j]
            j1 = 0
            while waiting[j1] > least_distance:
                j1 += 1
            waiting[j1] = np.inf
            bound[j1] = -np.inf
            if y[j1] < 0:
                end = j1
                break
            order[done] = j1
            done += 1
            i = y[j1]
            base = cost[i, j1] - v[j1] - least_distance
            for j in range(n):
                h = cost[i, j] - v[j] - base
                if h < bound[j]:
                    bound[j] = h
                    waiting[j] = h
                    distance[j] = h
                    previous[j] = i
        for k in range(done):
            j = order[k]
            v[j] += distance[j] - least_distance
        while True:
            i = previous[end]
            y[end] = i
            following = x[i]
            x[i] = end
            end = following
            if i == start:
                break
    value, dual = 0.0, 0.0
    for i in range(n):
        value += cost[i, x[i]]
        best = cost[i, 0] - v[0]
        for j in range(1, n):
            if cost[i, j] - v[j] < best:
                best = cost[i, j] - v[j]
        dual += best
    for j in range(n):
        dual += v[j]
    return value, dual
