"""The onset of connectivity: digits MLPs 64-256-256-10, barriers after 1 … 100 epochs, weight matching run anew at each.

Adam 1e-3, batch 50, three disjoint pairs; barrier "mean" on the train split, 25 points. Expected figures measured independently.

    python tests/benchmarks/onset_ladder.py --pairs 3
"""

from __future__ import annotations

import argparse
import statistics

import torch

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.matching import align
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train

# epoch -> (naive, aligned)
EXPECTED = {
    1: (1.09, 0.69),
    2: (1.12, 0.39),
    5: (0.91, 0.18),
    10: (0.74, 0.12),
    25: (0.49, 0.031),
    50: (0.36, 0.019),
    100: (0.28, 0.009),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    digits = task("digits")
    net = architecture("mlp", inputs=64, outputs=10, width=arguments.width, depth=2)
    model = net.build(seed=0)
    symmetry = discover_symmetry(model, digits.example_inputs)
    epochs = max(EXPECTED)
    found = train(
        net,
        digits,
        seeds=range(2 * arguments.pairs),
        epochs=epochs,
        batch_size=50,
        optimizer="adam",
        lr=1e-3,
        save_epochs=tuple(EXPECTED),
    )
    states = {(int(c.metadata["seed"]), int(c.metadata["epoch"])): c.state for c in found}
    print("epoch | naive → aligned (each pair)               expected        ratio | sweeps")
    ratios = []
    for epoch, (naive_expected, aligned_expected) in EXPECTED.items():
        naive, aligned, sweeps = [], [], []
        for pair in range(arguments.pairs):
            a, b = states[2 * pair, epoch], states[2 * pair + 1, epoch]
            match = align(symmetry, a, b, seed=pair)
            sweeps.append(match.sweeps)
            for end, values in ((b, naive), (match.aligned, aligned)):
                curve = profile_path(LinearPath(a, end), model, digits, splits=["train"])
                values.append(float(barrier(curve, "loss", "mean").squeeze()))
        ratios.append(statistics.mean(aligned) / aligned_expected)
        print(
            f"{epoch:5d} | {statistics.mean(naive):.2f} → {statistics.mean(aligned):.4f} ({' '.join(f'{v:.3f}' for v in aligned)})"
            f"   {naive_expected:.2f} → {aligned_expected:.3f}   {ratios[-1]:.2f} | {statistics.mean(sweeps):.1f}",
            flush=True,
        )
    print(f"\nwithin ±50 % at {sum(0.5 <= r <= 1.5 for r in ratios)} of {len(ratios)} epochs")


if __name__ == "__main__":
    main()
