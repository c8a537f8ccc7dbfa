"""The digits ladder: barriers between MLPs 64-w-w-10 on scikit-learn digits, naive and after weight matching, by width.

Adam 1e-3, batch 50, 100 epochs, three disjoint pairs a width; barrier "mean" (F: max − mean of the ends), 25 points. The table
measured independently stands beside; the criterion is ±50 % of its mean aligned train barrier at every width, falling with w.

    python tests/benchmarks/digits_ladder.py --pairs 3
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

import torch

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.matching import WeightMatching, align
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train

# width -> (train naive, train aligned, test naive, test aligned, L2 cut in %, sweeps), measured with throw-away code
EXPECTED = {
    8: (2.63, 0.99, 2.71, 1.04, 23.7, 2.7),
    16: (2.69, 0.65, 2.57, 0.63, 24.6, 3),
    32: (1.20, 0.145, 1.23, 0.143, 25.8, 4.3),
    64: (0.79, 0.060, 0.84, 0.050, 24.3, 7),
    128: (0.50, 0.019, 0.47, 0.006, 21.4, 7.3),
    256: (0.28, 0.009, 0.285, 0.004, 17.9, 12),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=list(EXPECTED))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--include-biases", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    digits = task("digits")
    matcher = WeightMatching(include_biases=arguments.include_biases)
    print(
        "   w | train naive → aligned (each pair)             expected       ratio | test naive → aligned"
        " | mid acc | ends  | L2 cut % | sweeps | seconds train, match, curves"
    )
    ratios, aligned_means = {}, []
    for width in arguments.widths:
        net = architecture("mlp", inputs=64, outputs=10, width=width, depth=2)
        model = net.build(seed=0)
        symmetry = discover_symmetry(model, digits.example_inputs)
        clock = [time.perf_counter()]
        seeds = tuple(range(arguments.first_seed, arguments.first_seed + 2 * arguments.pairs))
        found = [c.state for c in train(net, digits, seeds=seeds, epochs=100, batch_size=50, optimizer="adam", lr=1e-3)]
        clock.append(time.perf_counter())
        pairs = list(zip(found[::2], found[1::2], strict=True))
        alignments = [align(symmetry, a, b, matcher, seed=i) for i, (a, b) in enumerate(pairs)]
        clock.append(time.perf_counter())
        curves = {
            kind: [profile_path(LinearPath(a, end(b, m)), model, digits) for (a, b), m in zip(pairs, alignments, strict=True)]
            for kind, end in (("naive", lambda b, m: b), ("aligned", lambda b, m: m.aligned))
        }
        clock.append(time.perf_counter())

        def figures(kind: str, split: str, curves: dict = curves) -> list[float]:
            return [float(barrier(curve, "loss", "mean").sel(split=split)) for curve in curves[kind]]

        accuracy = {k: statistics.mean(float(c["accuracy"].sel(split="test", t=0.5)) for c in curves[k]) for k in curves}
        ends = statistics.mean(float(c["accuracy"].sel(split="test", t=t)) for c in curves["naive"] for t in (0.0, 1.0))
        each = figures("aligned", "train")
        mean = statistics.mean(each)
        aligned_means.append(mean)
        expected = EXPECTED.get(width)
        ratios[width] = mean / expected[1] if expected else float("nan")
        seconds = " ".join(f"{b - a:.1f}" for a, b in pairwise(clock))
        print(
            f"{width:4d} | {statistics.mean(figures('naive', 'train')):.2f} → {mean:.4f} ({' '.join(f'{v:.3f}' for v in each)})"
            f"  {f'{expected[0]:.2f} → {expected[1]:.3f}' if expected else '':16s} {ratios[width]:.2f}"
            f" | {statistics.mean(figures('naive', 'test')):.2f} → {statistics.mean(figures('aligned', 'test')):.4f}"
            f" | {accuracy['naive']:.2f} → {accuracy['aligned']:.3f} | {ends:.3f}"
            f" | {100 * statistics.mean(m.l2_cut for m in alignments):.1f} ({expected[4] if expected else ''})"
            f" | {statistics.mean(m.sweeps for m in alignments):.1f} ({expected[5] if expected else ''}) | {seconds}",
            flush=True,
        )
    inside = [width for width, ratio in ratios.items() if 0.5 <= ratio <= 1.5]
    falling = all(later < earlier for earlier, later in pairwise(aligned_means))
    print(f"\nwithin ±50 % at {len(inside)} of {len(ratios)} widths; falling with width: {falling}")


if __name__ == "__main__":
    main()
