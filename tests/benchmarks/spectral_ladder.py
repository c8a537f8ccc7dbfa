"""Which singular directions carry the match: weight matching on the leading, the trailing and all but the leading k of every layer.

    python tests/benchmarks/spectral_ladder.py MNIST_FOLDER [--pairs 2]

MNIST 784-512-512-512-10, Adam 1e-3, batch 500, 6 epochs. The element found on truncated weights (no vectors) is applied to the full
networks; training barrier on 10 000 images, midpoint test barrier, L2 cut. The trailing directions are the control: they hold
most of the squared norm of a layer, and no match.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.matching import MatchingProblem, SpectralMatching, WeightMatching, align
from workbench.matching.truncation import Spectra
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.states import distance
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train


def part(symmetry, state: dict, names, kind: str, k: int) -> dict:
    """The leading k directions of every layer, the trailing k, or all but the leading k."""
    spectra = Spectra(symmetry, state, names)
    # At most half of a layer trails: of the last one, of rank 10, the trailing 16 would be all of it.
    ranks = {n: k if kind != "trailing" else found[0].rank - min(k, found[0].rank // 2) for n, found in spectra.layers.items()}
    out = dict(state)
    for name, found in spectra.layers.items():
        kept = found[0].truncated(ranks[name]).reshape(state[name].shape)
        out[name] = kept if kind == "leading" else state[name].double() - kept
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data = task("mnist", root=arguments.mnist, flatten=True)
    net = architecture("mlp", inputs=784, outputs=10, width=512, depth=3)
    recipe = {"epochs": 6, "batch_size": 500, "optimizer": "adam", "lr": 1e-3}
    seeds = range(100, 100 + 2 * arguments.pairs)
    states = [train(net, data, seeds=(seed,), **recipe)[0].state for seed in seeds]
    pairs = list(zip(states[::2], states[1::2], strict=True))
    model, judged = net.build(seed=0), data.subset("train", 10_000, seed=0)
    symmetry = discover_symmetry(model, data.example_inputs)
    names = MatchingProblem(symmetry, states[0], states[0]).names
    without = WeightMatching(include_biases=False)

    def figures(a, b) -> str:
        profile = profile_path(LinearPath(a, b), model, judged, points=5)
        train_barrier = float(barrier(profile).sel(split="train"))
        middle = float(barrier(profile, definition="midpoint").sel(split="test"))
        return f"{train_barrier:.4f} ({middle:.4f})"

    def row(name: str, element_of) -> None:
        cells = []
        for a, b in pairs:
            moved = symmetry.apply(element_of(a, b), b)
            cut = 100 * (1 - distance(a, moved, names) / distance(a, b, names))
            cells.append(f"{figures(a, moved)} {cut:5.1f} %")
        print(f"{name:28s} " + "   ".join(cells), flush=True)

    print("barrier: train (midpoint, test), L2 cut; one column a pair")
    row("naive", lambda a, b: symmetry.identity())
    row("full, with vectors", lambda a, b: align(symmetry, a, b).element)
    row("full", lambda a, b: align(symmetry, a, b, without).element)
    for k in (8, 16, 32, 64):
        row(f"leading {k}", lambda a, b, k=k: align(symmetry, a, b, SpectralMatching(rank=k)).element)
    row("leading, read off", lambda a, b: align(symmetry, a, b, SpectralMatching()).element)
    for kind, counts in (("trailing", (16, 64)), ("all but leading", (8, 16))):
        for k in counts:
            row(
                f"{kind} {k}",
                lambda a, b, kind=kind, k=k: align(symmetry, *(part(symmetry, s, names, kind, k) for s in (a, b)), without).element,
            )


if __name__ == "__main__":
    main()
