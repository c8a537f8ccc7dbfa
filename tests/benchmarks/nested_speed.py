"""Speed of the nested assignment at real sizes, beside the same thing done pair by pair.

``pair_by_pair`` solves the inner assignments of all H² pairs, each from its own small products. ``wreath.propose`` takes all
scores from one product per tensor and solves only the inner problems that the outer one asks for. Both are exact where one
tensor holds one dependent factor, so the worth must agree; it is printed.

    python tests/benchmarks/nested_speed.py
"""

from __future__ import annotations

import time

import torch
from factored_models import Encoder, Experts, gaussian_state
from nested_reference import outer_factor, pair_by_pair

from workbench.matching import MatchingProblem, wreath
from workbench.symmetry import Element, discover_symmetry


def seconds(call, repeats: int) -> tuple[float, Element]:
    call()
    best, result = float("inf"), None
    for _ in range(repeats):
        begun = time.perf_counter()
        result = call()
        best = min(best, time.perf_counter() - begun)
    return best, result


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'':34s} {'pair by pair':>14s} {'propose':>10s} {'ratio':>7s}   worth of the two")
    cases = {
        "12 heads of 64, width 768": Encoder(inputs=32, width=768, heads=12, dk=64, dv=64, hidden=64),
        "8 experts of 256, width 256": Experts(inputs=32, width=256, experts=8, hidden=256),
    }
    for label, model in cases.items():
        symmetry = discover_symmetry(model, model.example())
        factor = outer_factor(symmetry)
        a = gaussian_state(model, 0)
        planted = symmetry.apply(symmetry.sample(1).restrict([factor, *MatchingProblem(symmetry, a, a).dependents[factor]]), a)
        noise = gaussian_state(model, 1)
        for kind, b in (
            ("planted", planted),
            ("noise 1", {n: t + noise[n] for n, t in planted.items()}),
            ("unrelated", noise),
        ):
            problem = MatchingProblem(symmetry, a, b)
            start = symmetry.identity()
            slow, first = seconds(lambda p=problem, f=factor, e=start: pair_by_pair(p, f, e), 2)
            fast, second = seconds(lambda p=problem, f=factor, e=start: wreath.propose(p, f, e).element, 2)
            worths = problem.objective(first), problem.objective(second)
            print(
                f"{label + ', ' + kind:40s} {slow:8.3f} s {fast:8.3f} s {slow / fast:7.1f}   {worths[0]:.6f} {worths[1]:.6f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
