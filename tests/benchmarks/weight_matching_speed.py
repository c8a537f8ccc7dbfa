"""Weight matching against ``rebasin`` 0.0.47 on one pair of MNIST 784-512-512-512-10 networks: medians of one run, same start.

    python tests/benchmarks/weight_matching_speed.py MNIST_FOLDER [--runs 7]      (needs: pip install rebasin==0.0.47 torchview)

Both start at the identity and visit layers in a random order. "matching" is what comes after tracing (rebasin) and after discovery
of the symmetry (workbench), which are printed apart. Objective: Σ⟨A, π(B)⟩ over all parameters.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from mnist_mlp import inner_product, sequential

from workbench.architectures import architecture
from workbench.matching import AnnealedMatching, FrankWolfe, WeightMatching, align
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    from rebasin import PermutationCoordinateDescent

    data = task("mnist", root=arguments.mnist, flatten=True)
    net = architecture("mlp", inputs=784, outputs=10, width=512, depth=3)
    recipe = {"epochs": 6, "batch_size": 500, "optimizer": "adam", "lr": 1e-3}
    a, b = (train(net, data, seeds=(seed,), **recipe)[0].state for seed in (0, 1))
    rows: dict[str, list[tuple[float, float, float]]] = {}

    def note(name: str, objective: float, prepared: float, seconds: float) -> None:
        rows.setdefault(name, []).append((objective, prepared, seconds))

    states = [sequential(state).state_dict() for state in (a, b)]
    model = sequential(a)
    symmetry = discover_symmetry(model, (torch.rand(2, 784),))
    align(symmetry, *states)  # numba compiles once per machine
    for run in range(arguments.runs):
        torch.manual_seed(run)
        first, second = sequential(a), sequential(b)
        start = time.perf_counter()
        descent = PermutationCoordinateDescent(first, second, torch.rand(2, 784))
        traced = time.perf_counter()
        descent.rebasin()
        done = time.perf_counter()
        note("rebasin 0.0.47", inner_product(first.parameters(), second.parameters()), traced - start, done - traced)
        start = time.perf_counter()
        symmetry = discover_symmetry(model, (torch.rand(2, 784),))
        discovered = time.perf_counter() - start
        methods = {
            "workbench": WeightMatching(),
            "workbench, SciPy": WeightMatching(solver="scipy"),
            "workbench, annealed": AnnealedMatching(),
            "workbench, frank-wolfe": FrankWolfe(),
        }
        for name, method in methods.items():
            start = time.perf_counter()
            match = align(symmetry, *states, method, seed=run)
            seconds = time.perf_counter() - start
            note(name, inner_product(states[0].values(), match.aligned.values()), discovered, seconds)
    reference = statistics.median(row[2] for row in rows["rebasin 0.0.47"])
    print(f"{'':24s} objective: mean    least   before   matching (median)  ratio")
    for name, found in rows.items():
        objectives, prepared, seconds = zip(*found, strict=True)
        middle = statistics.median(seconds)
        print(
            f"{name:24s} {statistics.mean(objectives):15.2f} {min(objectives):8.2f} {statistics.median(prepared):6.2f} s "
            f"{middle:16.3f} s {reference / middle:6.1f}"
        )


if __name__ == "__main__":
    main()
