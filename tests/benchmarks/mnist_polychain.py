"""Networks trained by others: the MNIST CNN pair and polygonal chain of jonasjuerss/mode-connectivity (a1ca78f, BSD-2-Clause).

conv 3x3 1→32, ReLU, pool, conv 3x3 32→64, ReLU, pool, flatten 64·5·5, linear → 10. The published figures (ends .9894 / .9887 and
.033, midpoint of the straight line .771 and .72, chain at most .0365) are reproduced to ±.002; then the pair is aligned, and the
flattened input of the last layer must move in blocks of 25.

    python tests/benchmarks/mnist_polychain.py CHECKPOINT_FOLDER MNIST_FOLDER
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from workbench.barriers import barrier
from workbench.checkpoints import load_checkpoint
from workbench.matching import WeightMatching, align
from workbench.paths import LinearPath, PolygonalPath
from workbench.profiles import profile_path
from workbench.spectra import singular_alignment
from workbench.symmetry import discover_symmetry
from workbench.tasks import task

PUBLISHED = {
    "end 1 accuracy": 0.9894,
    "end 2 accuracy": 0.9887,
    "end loss": 0.033,
    "midpoint accuracy": 0.771,
    "midpoint loss": 0.72,
}

# The chain was saved under the names of a curve network.
CHAIN_LAYERS = {"0": "net.conv1", "3": "net.conv2", "7": "net.fc"}


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 5 * 5, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--points", type=int, default=11)
    parser.add_argument("--train-examples", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    mnist = task("mnist", root=arguments.mnist).subset("train", arguments.train_examples, seed=0)
    a, b = (load_checkpoint(arguments.checkpoints / f"edpt{i}.safetensors").state for i in (1, 2))
    chain = load_checkpoint(arguments.checkpoints / "path2_polychain6_ep200.safetensors").state
    model = network()
    model.load_state_dict(a)
    seconds = {}

    start = time.perf_counter()
    symmetry = discover_symmetry(model, mnist.example_inputs)
    seconds["symmetry"] = time.perf_counter() - start
    print(
        {name: group.size for name, group in symmetry.groups.items()},
        "layouts of the last layer:",
        symmetry.tensors["7.weight"].layouts,
    )

    match = align(symmetry, a, b, model=model, inputs=mnist.split("test")[0][:500])
    anchored = align(symmetry, a, b, WeightMatching(restarts=15))
    seconds["matching"] = match.seconds
    kept = match.preservation
    print(
        f"matching: {match.sweeps} sweeps, objective {match.history[0].objective:.3f} → {match.objective:.3f} "
        f"(best of 16 starts {anchored.objective:.3f}), L2 cut {100 * match.l2_cut:.1f} %, "
        f"function change {kept.max_abs_change:.1e} of {kept.scale:.1f}"
    )

    start = time.perf_counter()
    curves = {
        "naive": profile_path(LinearPath(a, b), model, mnist, points=arguments.points),
        "aligned": profile_path(LinearPath(a, match.aligned), model, mnist, points=arguments.points),
    }
    seconds["two lines"] = time.perf_counter() - start
    points = [{n: chain[f"{CHAIN_LAYERS[n[0]]}{n[1:]}_{i}"] for n in a} for i in range(6)]
    line = profile_path(PolygonalPath(points), model, mnist, points=11, splits=["test"])

    naive = curves["naive"].sel(split="test")
    measured = {
        "end 1 accuracy": float(naive["accuracy"].sel(t=0.0)),
        "end 2 accuracy": float(naive["accuracy"].sel(t=1.0)),
        "end loss": float(naive["loss"].isel(t=[0, -1]).mean()),
        "midpoint accuracy": float(naive["accuracy"].sel(t=0.5)),
        "midpoint loss": float(naive["loss"].sel(t=0.5)),
    }
    print("\nfigure              published  measured  difference")
    for name, published in PUBLISHED.items():
        print(f"{name:18s}  {published:9.4f}  {measured[name]:8.4f}  {measured[name] - published:+.4f}")
    print(f"{'chain, largest loss':18s}    .0365  {float(line['loss'].max()):8.4f}")
    print("\nline      split   midpoint accuracy  midpoint loss  loss barrier (linear)  accuracy barrier")
    for kind, curve in curves.items():
        for split in ("train", "test"):
            at = curve.sel(split=split, t=0.5)
            loss, accuracy = (float(barrier(curve, metric).sel(split=split)) for metric in ("loss", "accuracy"))
            print(
                f"{kind:8s}  {split:5s}   {float(at['accuracy']):17.4f}  {float(at['loss']):13.4f}  {loss:21.4f}  {accuracy:16.4f}"
            )
    start = time.perf_counter()
    spectra = singular_alignment(a, b, aligned=match.aligned, symmetry=symmetry, top=(4, 8, 16))
    seconds["singular vectors"] = time.perf_counter() - start
    print(f"\nL2 cut {100 * float(spectra['l2_cut']):.1f} % (null {100 * float(spectra['null_l2_cut']):.1f} %)")
    for name, axis in (("R", "gamma"), ("R_top", "top")):
        for choice in spectra[axis].values:
            values = [
                float(spectra[v].sel({"stage": s, axis: choice}))
                for v, s in ((f"{name}_total", "before"), (f"{name}_total", "after"), (f"null_{name}_total", "after"))
            ]
            print(f"{name} {axis} {choice:g}: before {values[0]:.3f}  after {values[1]:.3f}  null {values[2]:.3f}")
    print("seconds:", ", ".join(f"{stage} {value:.2f}" for stage, value in seconds.items()))


if __name__ == "__main__":
    main()
