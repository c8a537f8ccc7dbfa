"""MNIST MLP 784-512-512-512-10, two seeds: barriers, L2 cut and R beside their null, seconds of each stage; rebasin beside it.

Adam 1e-3 constant, batch 500, 6 epochs, pixels / 255. Barriers: 25 points, train on a fixed 20 000-image subset, test on all.
The ranges are those proposed from an independent measurement of two pairs. With ``rebasin`` 0.0.47 and torchview installed
(development only: ``pip install rebasin==0.0.47 torchview``), its coordinate descent runs on the same pair.

    python tests/benchmarks/mnist_mlp.py MNIST_FOLDER
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.matching import WeightMatching, align
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.spectra import singular_alignment
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train

RANGES = {
    "naive train barrier": (0.9, 1.5),
    "aligned train barrier": (0.02, 0.07),
    "aligned test barrier": (-1.0, 0.045),
    "aligned / naive": (0.0, 0.06),
    "midpoint train accuracy": (0.982, 1.0),
    "L2 cut %": (8, 11),
    "L2 cut above null, points": (2.5, 100),
    "null L2 cut %": (5.0, 6.5),
    "R(0) before": (-0.01, 0.01),
    "R(0)": (0.065, 0.085),
    "null R(0)": (0.075, 0.09),
    "R(.3)": (0.105, 0.135),
    "null R(.3)": (0.085, 0.105),
    "R(.3) above null": (0.01, 1),
    "R(.5)": (0.30, 1),
    "null R(.5)": (-1, 0.12),
    "R top 8": (0.30, 1),
    "null R top 8": (-1, 0.08),
}


def sequential(state: dict) -> nn.Module:
    """The same network out of plain modules, which is all that rebasin's tracing sees."""
    names = [name for name in state if name.endswith(".weight")]
    layers: list[nn.Module] = []
    for name in names:
        weight, bias = state[name], state[name.replace("weight", "bias")]
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict({"weight": weight, "bias": bias})
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def inner_product(first, second) -> float:
    return sum(float((a.detach().double() * b.detach().double()).sum()) for a, b in zip(first, second, strict=True))


def beside_rebasin(a: dict, b: dict, runs: int) -> None:
    if importlib.util.find_spec("rebasin") is None or importlib.util.find_spec("torchview") is None:
        print("\nrebasin is not installed: pip install rebasin==0.0.47 torchview")
        return
    from rebasin import PermutationCoordinateDescent

    print("\nside by side on this pair (objective Σ⟨A, π(B)⟩ over all parameters, one visiting order a run)")
    found = {"rebasin 0.0.47": [], "workbench": []}
    for run in range(runs):
        torch.manual_seed(run)
        first, second = sequential(a), sequential(b)
        start = time.perf_counter()
        descent = PermutationCoordinateDescent(first, second, torch.rand(2, 784))
        traced = time.perf_counter()
        descent.rebasin()
        found["rebasin 0.0.47"].append(
            (inner_product(first.parameters(), second.parameters()), traced - start, time.perf_counter() - traced)
        )
        model = sequential(a)
        states = [sequential(s).state_dict() for s in (a, b)]
        start = time.perf_counter()
        symmetry = discover_symmetry(model, (torch.rand(2, 784),))
        traced = time.perf_counter()
        match = align(symmetry, *states, seed=run)
        objective = inner_product(states[0].values(), match.aligned.values())
        found["workbench"].append((objective, traced - start, time.perf_counter() - traced))
    for name, rows in found.items():
        objectives, traces, seconds = zip(*rows, strict=True)
        print(
            f"{name:15s} objective {' '.join(f'{o:.3f}' for o in objectives)} (mean {statistics.mean(objectives):.3f})"
            f"   tracing {statistics.median(traces):.2f} s   matching {statistics.median(seconds):.2f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 1))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--train-examples", type=int, default=20_000)
    parser.add_argument("--points", type=int, default=25)
    parser.add_argument("--rebasin-runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the measured figures as JSON too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    seconds: dict[str, float] = {}

    def timed(stage: str, function, *args, **options):
        start = time.perf_counter()
        result = function(*args, **options)
        seconds[stage] = time.perf_counter() - start
        return result

    mnist = timed("data", task, "mnist", root=arguments.mnist, flatten=True)
    net = architecture("mlp", inputs=784, outputs=10, width=512, depth=3)
    recipe = {"epochs": arguments.epochs, "batch_size": 500, "optimizer": "adam", "lr": 1e-3}
    a, b = (c.state for c in timed("training of both", train, net, mnist, seeds=tuple(arguments.seeds), **recipe))
    model = net.build(seed=0)
    judged = mnist.subset("train", arguments.train_examples, seed=0)
    symmetry = timed("symmetry", discover_symmetry, model, mnist.example_inputs)
    match = timed("matching", align, symmetry, a, b, model=model, inputs=judged.split("test")[0][:1000])
    naive = timed("naive line", profile_path, LinearPath(a, b), model, judged, points=arguments.points)
    aligned = timed("aligned line", profile_path, LinearPath(a, match.aligned), model, judged, points=arguments.points)
    spectra = timed("singular vectors with null", singular_alignment, a, b, aligned=match.aligned, symmetry=symmetry)
    spread = [align(symmetry, a, b, WeightMatching(), seed=s).objective for s in range(1, 4)]

    def of(name: str, stage: str = "after", **at) -> float:
        return float(spectra[name].sel(stage=stage, **at))

    def line(profile, split: str) -> float:
        return float(barrier(profile, "loss", "linear").sel(split=split))

    measured = {
        "naive train barrier": line(naive, "train"),
        "aligned train barrier": line(aligned, "train"),
        "aligned test barrier": line(aligned, "test"),
        "aligned / naive": line(aligned, "train") / line(naive, "train"),
        "midpoint train accuracy": float(aligned["accuracy"].sel(split="train", t=0.5)),
        "L2 cut %": 100 * match.l2_cut,
        "L2 cut above null, points": 100 * (match.l2_cut - float(spectra["null_l2_cut"])),
        "null L2 cut %": 100 * float(spectra["null_l2_cut"]),
        "R(0) before": of("R_total", "before", gamma=0.0),
        "R(0)": of("R_total", gamma=0.0),
        "null R(0)": of("null_R_total", gamma=0.0),
        "R(.3)": of("R_total", gamma=0.3),
        "null R(.3)": of("null_R_total", gamma=0.3),
        "R(.3) above null": of("R_total", gamma=0.3) - of("null_R_total", gamma=0.3),
        "R(.5)": of("R_total", gamma=0.5),
        "null R(.5)": of("null_R_total", gamma=0.5),
        "R top 8": of("R_top_total", top=8),
        "null R top 8": of("null_R_top_total", top=8),
    }
    ends = [
        f"{float(naive[m].sel(split=s).isel(t=i)):.4f}" for s in ("train", "test") for m in ("loss", "accuracy") for i in (0, -1)
    ]
    print("ends: train loss {} {}, accuracy {} {}; test loss {} {}, accuracy {} {}".format(*ends))
    print("figure                        measured   range              inside")
    for name, value in measured.items():
        low, high = RANGES[name]
        print(f"{name:28s}  {value:9.4f}   {low:7.3f} … {high:7.3f}   {'yes' if low <= value <= high else 'NO'}")
    for gamma in (0.3, 0.5):
        kept = spectra["kept"].sel(gamma=gamma, model="anchor").values.tolist()
        null = spectra["null_kept"].sel(gamma=gamma).values.astype(int).tolist()
        layers = " ".join(f"{v:.3f}" for v in spectra["R"].sel(stage="after", gamma=gamma).values)
        same = of("null_R_same_k_total", gamma=gamma)
        print(f"γ={gamma}: R by layer {layers}; kept {kept}, null keeps {null}; null with the same k: R {same:.3f}")
    print(
        f"matching: {match.sweeps} sweeps, {match.seconds:.2f} s, function change {match.preservation.max_abs_change:.1e} "
        f"of {match.preservation.scale:.1f}; objective {match.objective:.3f}, "
        f"other visiting orders {', '.join(f'{o:.3f}' for o in spread)}"
    )
    print("seconds:", ", ".join(f"{stage} {value:.2f}" for stage, value in seconds.items()))
    if arguments.json:
        print(json.dumps({"measured": measured, "seconds": seconds}))
    beside_rebasin(a, b, arguments.rebasin_runs)


if __name__ == "__main__":
    main()
