"""The linear assignment problem by auction, on any device (Bertsekas, Annals of Operations Research 14, 1988).

    maximise Σ_i a[i, x(i)]        prices p: row i wants the column of largest a[i, j] − p[j]

All rows without a column bid at once: each offers its best column a price at which it is ε better off than with its second best,
and the highest bid takes the column. With one ε every row ends within ε of its best, so the value is within n·ε of the optimum.
ε falls by steps, prices are kept. A round is one pass of matrix operations, which suits a GPU and large n; the last few rows bid
against each other for many rounds, so it may stop early and hand its prices to an exact solver.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.errors import WorkbenchError


@dataclass(frozen=True)
class Auction:
    """columns: row -> column, int64 on the CPU, −1 where a row was left without one; prices: (n,) on the device of the scores;
    value: Σ a[i, x(i)] and gap: dual value − value (NaN where rows are left); rounds: of bids; complete: whether none is left."""

    columns: Tensor
    prices: Tensor
    value: float
    gap: float
    rounds: int
    complete: bool


def auction(
    score: Tensor,
    *,
    prices: Tensor | None = None,
    gap: float = 1e-6,
    scaling: float = 6.0,
    max_rounds: int = 20_000,
    enough: float = 1.0,
) -> Auction:
    """A permutation within ``gap`` · (largest − smallest score) · n of the best, and prices that prove it.

    score: (n, n), float, finite; prices: of a related problem; scaling: by what ε falls from phase to phase; max_rounds: of bids,
    over all phases; enough: stop the last phase when this share of the rows has a column (1: all).
    """
    if score.dim() != 2 or score.shape[0] != score.shape[1]:
        raise WorkbenchError(f"The scores have shape {tuple(score.shape)}", expected="a square matrix")
    if not bool(torch.isfinite(score).all()):
        raise WorkbenchError("The scores are not all finite", expected="finite scores")
    if not (gap > 0 and scaling > 1 and max_rounds > 0 and 0 < enough <= 1):
        raise WorkbenchError(
            f"gap={gap}, scaling={scaling}, max_rounds={max_rounds}, enough={enough}",
            expected="gap > 0, scaling > 1, max_rounds > 0, enough in (0, 1]",
        )
    n, device = score.shape[0], score.device
    if n == 0:
        return Auction(torch.zeros(0, dtype=torch.int64), score.new_zeros(0), 0.0, 0.0, 0, True)
    spread = float(score.max() - score.min()) or 1.0
    p = score.new_zeros(n) if prices is None else prices.to(score).clone()
    last = gap * spread
    epsilon = last if prices is not None else max(spread / 4, last)
    rounds = 0
    while True:
        owner = torch.full((n,), -1, dtype=torch.int64, device=device)  # column -> row
        column = torch.full((n,), -1, dtype=torch.int64, device=device)  # row -> column
        waiting = torch.arange(n, device=device)
        final = epsilon <= last
        stop = n - int(enough * n) if final else 0
        while len(waiting) > stop and rounds < max_rounds:
            rounds += 1
            _bid(score, p, owner, column, waiting, epsilon)
            waiting = (column < 0).nonzero().flatten()
        if final or rounds >= max_rounds:
            break
        epsilon = max(epsilon / scaling, last)
    complete = bool((column >= 0).all())
    value, difference = float("nan"), float("nan")
    if complete:
        value = float(score.gather(1, column[:, None]).sum(dtype=torch.float64))
        dual = float((score - p).amax(1).sum(dtype=torch.float64) + p.sum(dtype=torch.float64))
        difference = dual - value
    return Auction(column.cpu(), p, value, difference, rounds, complete)


def _bid(score: Tensor, p: Tensor, owner: Tensor, column: Tensor, waiting: Tensor, epsilon: float) -> None:
    """One round: every waiting row bids for its best column, every column takes its highest bid. Changes p, owner and column."""
    values = score[waiting] - p
    if values.shape[1] > 1:
        top = values.topk(2, dim=1)
        target, margin = top.indices[:, 0], top.values[:, 0] - top.values[:, 1]
    else:
        target, margin = torch.zeros_like(waiting), values.new_zeros(len(waiting))
    bids = p[target] + margin + epsilon
    highest = torch.full_like(p, -torch.inf).scatter_reduce(0, target, bids, "amax")
    # Of equal bids for a column the row of largest number wins.
    winning = bids == highest[target]
    winner = torch.full_like(owner, -1).scatter_reduce(0, target[winning], waiting[winning], "amax")
    sold = winner >= 0
    displaced = owner[sold]
    column[displaced[displaced >= 0]] = -1
    owner[sold] = winner[sold]
    column[winner[sold]] = sold.nonzero().flatten()
    p[sold] = highest[sold]
