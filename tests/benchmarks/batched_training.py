"""Eight digits MLPs 64-64-64-10 in one batched run against eight runs: CPU seconds, and whether the weights are the same.

    python tests/benchmarks/batched_training.py [--epochs 10] [--repeats 5]

Batch 50, Adam 1e-3, one thread; ``time.process_time``, evaluation of the finished models included on both sides. Two baselines:
``train`` called eight times without batching, and a loop in plain torch (nn.Sequential, torch.optim.Adam) that evaluates nothing.
Expected: a ratio of at most two thirds, weights equal to 1e-5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import nn

from workbench.architectures import architecture
from workbench.checkpoints import Checkpoint
from workbench.schema import versions
from workbench.tasks import Task, task
from workbench.training import train
from workbench.training.run import stream

SEEDS = range(8)
NET = architecture("mlp", inputs=64, outputs=10, width=64, depth=2)


def batched(digits: Task, epochs: int) -> list[Checkpoint]:
    return train(NET, digits, seeds=SEEDS, epochs=epochs, batched=True)


def one_by_one(digits: Task, epochs: int) -> list[Checkpoint]:
    return [train(NET, digits, seeds=[seed], epochs=epochs, batched=False)[0] for seed in SEEDS]


def plain_torch(digits: Task, epochs: int) -> list[dict[str, torch.Tensor]]:
    """What somebody without this package would write."""
    x, y = digits.split("train")
    found = []
    for seed in SEEDS:
        start = NET.build(seed).state_dict()
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        net.load_state_dict(dict(zip(net.state_dict(), start.values(), strict=True)))
        optimizer, order = torch.optim.Adam(net.parameters(), lr=1e-3), stream(seed, "order")
        for _ in range(epochs):
            for chosen in torch.randperm(len(x), generator=order).split(50):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[chosen]), y[chosen]).backward()
                optimizer.step()
        found.append(dict(zip(start, net.state_dict().values(), strict=True)))
    return found


def largest_difference(first: list[Checkpoint], second: list) -> float:
    states = [other.state if isinstance(other, Checkpoint) else other for other in second]
    return max(float((a.state[k] - b[k]).abs().max()) for a, b in zip(first, states, strict=True) for k in b)


def main() -> dict:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    digits = task("digits")
    ways = {"batched": batched, "eight runs": one_by_one, "eight runs in plain torch": plain_torch}
    results = {name: way(digits, 1) for name, way in ways.items()}  # first calls import and compile
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.repeats):
        for name, way in ways.items():
            start = time.process_time()
            results[name] = way(digits, arguments.epochs)
            seconds[name].append(time.process_time() - start)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    report = {
        "epochs": arguments.epochs,
        "cpu_seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
        "ratio": round(middle["batched"] / middle["eight runs"], 3),
        "ratio_to_plain_torch": round(middle["batched"] / middle["eight runs in plain torch"], 3),
        "largest_difference": largest_difference(results["batched"], results["eight runs"]),
        "largest_difference_to_plain_torch": largest_difference(results["batched"], results["eight runs in plain torch"]),
        "versions": versions(),
    }
    print(json.dumps(report, indent=1))
    return report


if __name__ == "__main__":
    found = main()
    raise SystemExit(0 if found["ratio"] <= 2 / 3 and found["largest_difference"] <= 1e-5 else 1)
