"""Assignment solvers against SciPy: n = 512 … 4096, unrelated and related costs, cold and warm, in ms (medians of one run).

    python tests/benchmarks/assignment_speed.py [--sizes 512 1024 2048 4096] [--device cpu]

Scores are inner products of the weights of two layers (fan-in n): unrelated ones, or the second a permuted copy of the first with
noise. "warm" is the next problem of a descent: the scores changed by 5 % of their deviation, solved with the potentials and the
assignment of the first; SciPy has no such start. The auction runs on ``--device`` to a gap of 1e-4 of the spread per row.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from workbench.matching.auction import auction
from workbench.matching.lap import solve_assignment


def median(function, repeats: int) -> tuple[float, object]:
    times, result = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times), result


def scipy_value(cost: np.ndarray) -> float:
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-auction", action="store_true")
    arguments = parser.parse_args()
    solve_assignment(np.eye(3))  # compile
    print("    n  scores      scipy      jv  ratio   scipy*  jv warm  ratio   auction  gap/optimum  jv on its prices   difference")
    for n in arguments.sizes:
        for related in (False, True):
            generator = np.random.default_rng(n)
            a = generator.normal(size=(n, n))
            b = a[generator.permutation(n)] + 1.5 * generator.normal(size=(n, n)) if related else generator.normal(size=(n, n))
            cost = -(a @ b.T)
            later = cost + 0.05 * cost.std() * generator.normal(size=cost.shape)
            repeats = arguments.repeats if n <= 2048 else 1
            t_scipy, v_scipy = median(lambda c=cost: scipy_value(c), repeats)
            t_jv, first = median(lambda c=cost: solve_assignment(c), repeats)
            t_later, v_later = median(lambda c=later: scipy_value(c), repeats)
            t_warm, warm = median(lambda c=later, f=first: solve_assignment(c, potentials=f.potentials, columns=f.columns), repeats)
            difference = max(abs(first.value - v_scipy), abs(warm.value - v_later))
            told = ""
            if not arguments.no_auction:
                score = torch.from_numpy(-cost).to(arguments.device, torch.float32)
                t_auction, bids = median(lambda s=score: auction(s, gap=1e-4, max_rounds=3000), 1)
                prices, columns = -bids.prices.double().cpu().numpy(), bids.columns.numpy()
                t_after, _ = median(lambda c=cost, p=prices, x=columns: solve_assignment(c, potentials=p, columns=x), 1)
                gap = f"{bids.gap / -v_scipy:11.1e}" if bids.complete else f"{'incomplete':>11s}"
                told = f"{t_auction:9.0f}  {gap}  {t_after:16.1f}"
            print(
                f"{n:5d}  {'related  ' if related else 'unrelated'} {t_scipy:7.1f} {t_jv:7.1f} {t_scipy / t_jv:6.1f}  "
                f"{t_later:7.1f}  {t_warm:7.1f} {t_later / t_warm:6.1f} {told}   {difference:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
