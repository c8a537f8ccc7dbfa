"""Weight matching with restarts, Frank–Wolfe, spectral matching and the annealed start on the same pairs, for the same seconds.

    python tests/benchmarks/matchers_at_equal_time.py [MNIST_FOLDER] [--pairs 5]

Digits MLPs, convolutional nets and ResNet-8s (and MNIST 784-512-512-512-10 with its folder), trained here. The budget of a pair is
what one run of Frank–Wolfe takes on it; every method runs again from further random starts while there is time left, and the run of
best objective counts (spectral matching: of the truncated weights). Figures are means over the pairs, and how often a method was
better than weight matching with restarts. The barrier is that of the training loss; BatchNorm is not used.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.matching import AnnealedMatching, FrankWolfe, MatchingProblem, SpectralMatching, WeightMatching, align
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train

METHODS = {
    "weights, one run": WeightMatching(),
    "weights, restarts": WeightMatching(),
    "weights, anchored": WeightMatching(start="anchored"),
    "frank-wolfe": FrankWolfe(),
    "spectral": SpectralMatching(),
    "spectral, k=32": SpectralMatching(rank=32),
    "annealed": AnnealedMatching(),
}
ONCE = {"weights, one run", "frank-wolfe"}


def models(kind: str, count: int, folder: Path | None):
    """An architecture's model, the task it is judged on, and ``count`` trained state dicts."""
    if kind == "mnist mlp":
        data = task("mnist", root=folder, flatten=True)
        net = architecture("mlp", inputs=784, outputs=10, width=512, depth=3)
        states = [train(net, data, seeds=(s,), epochs=6, batch_size=500, optimizer="adam", lr=1e-3)[0].state for s in range(count)]
        return net.build(seed=0), data.subset("train", 10_000, seed=0), states
    if kind == "digits mlp":
        data = task("digits")
        net = architecture("mlp", inputs=64, outputs=10, width=256, depth=3)
        recipe = {"epochs": 60, "batch_size": 50, "optimizer": "adam", "lr": 1e-3}
    elif kind == "digits convolutional":
        data = task("digits", flatten=False)
        net = architecture("convnet", width=32, norm="layer")
        recipe = {"epochs": 30, "batch_size": 50, "optimizer": "adam", "lr": 1e-3}
    else:
        data = task("digits", flatten=False)
        net = architecture("resnet", depth=8, width=2, norm="layer", channels=1)
        recipe = {"epochs": 15, "batch_size": 50, "optimizer": "adam", "lr": 1e-3}
    states = [one.state for one in train(net, data, seeds=range(count), **recipe)]
    return net.build(seed=0), data, states


def repeated(name: str, symmetry, a, b, budget: float):
    """The best of as many runs as fit into ``budget`` seconds (at least one), and how many there were."""
    method, best, runs, start = METHODS[name], None, 0, time.perf_counter()
    while best is None or (name not in ONCE and time.perf_counter() - start < budget):
        first = symmetry.sample(runs) if runs else None
        found = align(symmetry, a, b, method, seed=runs, start=first)
        worth = found.criterion.get("objective of the truncated weights", found.objective)
        if best is None or worth > best[0]:
            best = worth, found
        runs += 1
    return best[1], runs, time.perf_counter() - start


def compare(kind: str, pairs: int, folder: Path | None) -> None:
    start = time.perf_counter()
    model, data, states = models(kind, 2 * pairs, folder)
    print(f"\n{kind}: {pairs} pairs, trained in {time.perf_counter() - start:.0f} s", flush=True)
    symmetry = discover_symmetry(model, data.example_inputs)

    def line(a, b) -> float:
        profile = profile_path(LinearPath(a, b), model, data, points=11, splits=("train",))
        return float(barrier(profile)[0])

    rows: dict[str, list[tuple[float, float, float, int, float]]] = {name: [] for name in METHODS}
    naive = []
    align(symmetry, states[0], states[1])  # compile before the clock runs
    for a, b in zip(states[::2], states[1::2], strict=True):
        naive.append(line(a, b))
        scale = MatchingProblem(symmetry, a, a).objective(symmetry.identity())
        begin = time.perf_counter()
        align(symmetry, a, b, replace(FrankWolfe()))
        budget = time.perf_counter() - begin
        for name in METHODS:
            found, runs, seconds = repeated(name, symmetry, a, b, budget)
            rows[name].append((found.objective / scale, line(a, found.aligned), found.l2_cut, runs, seconds))
    reference = rows["weights, restarts"]
    print(f"naive barrier {statistics.mean(naive):.4f}; objective as a share of ‖anchor‖²")
    print(f"{'method':20s} objective  better   barrier  better   L2 cut %   runs  seconds")
    for name, found in rows.items():
        means = [statistics.mean(values) for values in zip(*found, strict=True)]
        higher = sum(mine[0] > other[0] + 1e-9 for mine, other in zip(found, reference, strict=True))
        lower = sum(mine[1] < other[1] for mine, other in zip(found, reference, strict=True))
        print(
            f"{name:20s} {means[0]:9.4f}  {higher}/{pairs}   {means[1]:9.4f}   {lower}/{pairs}   {100 * means[2]:8.1f}  "
            f"{means[3]:5.1f}  {means[4]:7.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    kinds = ["digits mlp", "digits convolutional", "digits residual"]
    for kind in [*kinds, *(["mnist mlp"] if arguments.mnist is not None else [])]:
        compare(kind, arguments.pairs, arguments.mnist)


if __name__ == "__main__":
    main()
