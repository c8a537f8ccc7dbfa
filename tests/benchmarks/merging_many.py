"""Many models: five digits MLPs merged by every method, and whether closeness is transitive on MNIST.

    python tests/benchmarks/merging_many.py [MNIST_FOLDER]

The table is laid out as table 3 of Git Re-Basin (arXiv 2209.04836): the models, then the mean of the aligned ones over three seeds.
With MNIST: four 784-512-512-512-10 models (Adam 1e-3, batch 500, 6 epochs), 1, 2 and 3 each aligned to 0; the training barrier
between them, on 10 000 images and 11 points, beside the naive and the direct one, by weight matching and by spectral matching.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.evaluation import evaluate
from workbench.matching import SpectralMatching, WeightMatching, align, align_many, cycle_error
from workbench.matching.many import mean_of
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train


def five_digits(width: int) -> None:
    data = task("digits")
    net = architecture("mlp", inputs=64, outputs=10, width=width, depth=3)
    recipe = {"epochs": 60, "batch_size": 50, "optimizer": "adam", "lr": 1e-3}
    states = [one.state for one in train(net, data, seeds=range(5), **recipe)]
    model = net.build(seed=0)
    symmetry = discover_symmetry(model, data.example_inputs)
    keys = [(split, metric) for split in ("train", "test") for metric in ("loss", "accuracy")]
    print(f"\ndigits, width {width}       " + "  ".join(f"{split} {metric:>8s}" for split, metric in keys))
    for number, state in enumerate(states):
        values = evaluate(model, state, data)
        print(f"  model {number}              " + "  ".join(f"{values[key]:{len(key[0]) + 9}.4f}" for key in keys))
    for method in ("identity", "all-to-one", "merge-many", "frank-wolfe"):
        runs = [align_many(symmetry, states, method, seed=seed) for seed in range(3)]
        values = [evaluate(model, run.merged, data) for run in runs]
        table = np.array([[value[key] for key in keys] for value in values])
        cells = "  ".join(f"{mean:{len(key[0]) + 9}.4f}" for key, mean in zip(keys, table.mean(0), strict=True))
        objective = np.array([run.objective for run in runs])
        print(
            f"  mean, {method:14s} {cells}   s.d. of test loss {table[:, 2].std():.4f}, objective {objective.mean():.1f} "
            f"± {objective.std():.1f}, cycle error {max(run.cycle_error for run in runs):.3f}",
            flush=True,
        )
    alone = {(p, q): align(symmetry, states[p], states[q]).element for p, q in itertools.permutations(range(5), 2)}
    print(f"  pairs by themselves: cycle error {cycle_error(alone):.3f}")


def transitivity(folder: Path) -> None:
    data = task("mnist", root=folder, flatten=True)
    net = architecture("mlp", inputs=784, outputs=10, width=512, depth=3)
    recipe = {"epochs": 6, "batch_size": 500, "optimizer": "adam", "lr": 1e-3}
    states = [train(net, data, seeds=(seed,), **recipe)[0].state for seed in range(4)]
    model, judged = net.build(seed=0), data.subset("train", 10_000, seed=0)
    symmetry = discover_symmetry(model, data.example_inputs)

    def line(a, b) -> tuple[float, float]:
        values = barrier(profile_path(LinearPath(a, b), model, judged, points=11))
        return float(values.sel(split="train")), float(values.sel(split="test"))

    print("\nMNIST 784-512-512-512-10, barriers between models that were aligned to model 0 (train; test)")
    methods = {"weights": WeightMatching(), "spectral": SpectralMatching(), "spectral, k=16": SpectralMatching(rank=16)}
    for name, method in methods.items():
        via = [states[0], *(align(symmetry, states[0], state, method).aligned for state in states[1:])]
        for p, q in itertools.combinations(range(1, 4), 2):
            direct = align(symmetry, states[p], states[q], method).aligned
            figures = [line(states[p], states[q]), line(states[p], direct), line(via[p], via[q])]
            told = ", ".join(f"{w} {a:.4f}; {b:.4f}" for w, (a, b) in zip(("naive", "direct", "via 0"), figures, strict=True))
            print(f"  {name:15s} {p}–{q}: {told}", flush=True)
        merged = evaluate(model, mean_of(via), judged)
        _mean(name, merged)
    _mean("frank-wolfe, all at once", evaluate(model, align_many(symmetry, states).merged, judged))


def _mean(name: str, found: dict[tuple[str, str], float]) -> None:
    print(f"  {name:15s} mean of the four: train loss {found['train', 'loss']:.3f}, accuracy {found['train', 'accuracy']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path, nargs="?")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for width in arguments.widths:
        five_digits(width)
    if arguments.mnist is not None:
        transitivity(arguments.mnist)


if __name__ == "__main__":
    main()
