"""Activation matching: the digits ladder beside weight matching, and its time and memory on MNIST beside forward passes.

    python tests/benchmarks/activation_matching.py [MNIST_FOLDER]

The time is compared with one forward pass of both networks over the same images in batches of the same size (eager, no gradients),
in this run; the peak is of the process, so every number of images has a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.matching import ActivationMatching, WeightMatching, align
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train


def digits(pairs: int) -> None:
    data = task("digits")
    methods = {
        "naive": "identity",
        "weights": WeightMatching(),
        "uncentred": ActivationMatching(cost="uncentred"),
        "correlation": ActivationMatching(),
    }
    print("digits, train-loss barrier, mean of", pairs, "pairs")
    print("width " + "".join(f"{name:>13s}" for name in methods))
    for width in (32, 64, 128):
        net = architecture("mlp", inputs=64, outputs=10, width=width, depth=2)
        seeds = range(2 * pairs)
        states = [one.state for one in train(net, data, seeds=seeds, epochs=100, batch_size=50, optimizer="adam", lr=1e-3)]
        model = net.build(seed=0)
        symmetry = discover_symmetry(model, data.example_inputs)
        row = []
        for method in methods.values():
            values = []
            for a, b in zip(states[::2], states[1::2], strict=True):
                found = align(symmetry, a, b, method, model=model, task=data)
                profile = profile_path(LinearPath(a, found.aligned), model, data, points=25, splits=("train",))
                values.append(float(barrier(profile)[0]))
            row.append(statistics.mean(values))
        print(f"{width:5d} " + "".join(f"{value:13.4f}" for value in row), flush=True)


def network() -> tuple:
    net = architecture("mlp", inputs=784, outputs=10, width=512, depth=3)
    return net.build(seed=0), [net.build(seed=seed).state_dict() for seed in (1, 2)]


def mnist(folder: Path, batch: int, repeats: int) -> None:
    data = task("mnist", root=folder, flatten=True)
    model, states = network()
    symmetry = discover_symmetry(model, data.example_inputs)
    x, _ = data.split("train")
    twins = []
    for state in states:
        twin = network()[0]
        twin.load_state_dict(state)
        twins.append(twin.eval())
    seconds: dict[str, list[float]] = {"two forward passes": [], "activation matching": []}
    method = ActivationMatching(batch_size=batch)
    align(symmetry, *states, method, model=model, inputs=(x[: 2 * batch],))
    for _ in range(repeats):
        start = time.perf_counter()
        with torch.no_grad():
            for twin in twins:
                for part in x.split(batch):
                    twin(part)
        seconds["two forward passes"].append(time.perf_counter() - start)
        start = time.perf_counter()
        align(symmetry, *states, method, model=model, inputs=(x,))
        seconds["activation matching"].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["activation matching"] / medians["two forward passes"]
    told = ", ".join(f"{name} {value:.2f} s" for name, value in medians.items())
    print(f"\nMNIST 784-512-512-512-10, {len(x)} images, batch {batch}: {told}, ratio {ratio:.2f}")


def peak(folder: Path, images: int, batch: int) -> None:
    data = task("mnist", root=folder, flatten=True)
    model, states = network()
    symmetry = discover_symmetry(model, data.example_inputs)
    x, _ = data.split("train")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    align(symmetry, *states, ActivationMatching(batch_size=batch, examples=images), model=model, inputs=(x,))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{images:6d} images: peak {after / 1024:.0f} MiB, {(after - before) / 1024:.0f} MiB above data and model", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peak", type=int, help="measure the peak for so many images, and nothing else")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.peak:
        peak(arguments.mnist, arguments.peak, arguments.batch)
        return
    digits(arguments.pairs)
    if arguments.mnist is not None:
        mnist(arguments.mnist, arguments.batch, arguments.repeats)
        for images in (10_000, 30_000, 60_000):
            command = [sys.executable, __file__, str(arguments.mnist), "--peak", str(images), "--batch", str(arguments.batch)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
