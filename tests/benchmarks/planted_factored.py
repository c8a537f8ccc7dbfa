"""Planted elements of factored groups: heads, query heads in groups, experts. Does weight matching find the way back?

B is A moved by a random element of the whole group, plus noise of sigma times each tensor's standard deviation. "planted": runs
whose objective equals that of the planted element to 1e-9 (with noise: is at least that), "element": runs that return exactly
its inverse, of --seeds. Controls: nothing matched, a random element, the best of the runs against a B whose query heads were
also exchanged across key/value groups (no element of the group), and unrelated networks.

    python tests/benchmarks/planted_factored.py --seeds 10
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from factored_models import Decoder, Encoder, Experts, gaussian_state
from planted import plant
from torch import nn

from workbench.matching import MatchingProblem, WeightMatching, align
from workbench.symmetry import Symmetry, discover_symmetry

MODELS: dict[str, Callable[[], nn.Module]] = {
    "multi-head, 6 heads, 1 block": Encoder,
    "multi-head, 6 heads, 4 blocks": lambda: Encoder(layers=4),
    "grouped-query rotary, 6/3 heads, 2 blocks": Decoder,
    "grouped-query rotary, 8/2 heads, 6 blocks": lambda: Decoder(heads=8, kv_heads=2, layers=6),
    "experts, softmax gates": Experts,
    "experts, one-hot gates": lambda: Experts(gates="one-hot"),
}
STARTS = {
    "identity": WeightMatching(),
    "anchored": WeightMatching(start="anchored"),
    "8 starts": WeightMatching(restarts=7),
    "invariant": WeightMatching(head_similarity="invariant"),
}


def outside_the_group(model: nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Two query heads of different key/value groups change places (with their columns of the output projection), or two heads'
    values without their queries, or two experts without their router rows: not a symmetry of the model."""
    out = {name: tensor.clone() for name, tensor in state.items()}
    if isinstance(model, Experts):
        for name in ("up", "up_bias", "down"):
            out[name] = out[name].roll(1, 0)
        return out
    attention = model.attention[0]
    heads, kv = attention.heads, attention.kv_heads
    roll = heads // kv
    for name, axis in (("attention.0.q.weight", 0), ("attention.0.q.bias", 0), ("attention.0.o.weight", 1)):
        if name in out and not (heads == kv and ".o." in name):
            split = out[name].unflatten(axis, (heads, -1))
            out[name] = split.roll(roll, axis).flatten(axis, axis + 1)
    return out


def controls(model: nn.Module, symmetry: Symmetry, seed: int) -> list[float]:
    """Objectives as shares of the planted one: unmoved, a random element, matched outside the group, matched unrelated."""
    a = gaussian_state(model, seed)
    b, planted = plant(a, symmetry, 0.0, 1000 + seed)
    problem = MatchingProblem(symmetry, a, b)
    best = problem.objective(planted.inverse())
    crossed = symmetry.apply(planted, outside_the_group(model, a))
    unrelated = gaussian_state(model, seed + 500)
    starts = WeightMatching(restarts=7)
    return [
        problem.objective(symmetry.identity()) / best,
        problem.objective(symmetry.sample(seed)) / best,
        align(symmetry, a, crossed, starts, seed=seed).objective / best,
        align(symmetry, a, unrelated, starts, seed=seed).objective / best,
    ]


def recovery(model: nn.Module, symmetry: Symmetry, sigma: float, seeds: int, matcher: WeightMatching) -> tuple[str, float]:
    """One character per seed: "=" the planted element, "+" its objective or more by another one, "." less; and seconds."""
    marks, begun = "", time.perf_counter()
    for seed in range(seeds):
        a = gaussian_state(model, seed)
        b, planted = plant(a, symmetry, sigma, 1000 + seed)
        found = align(symmetry, a, b, matcher, seed=seed)
        target = MatchingProblem(symmetry, a, b).objective(planted.inverse())
        reached = found.objective >= target - 1e-9 * abs(target)
        marks += "=" if found.element == planted.inverse() else "+" if reached else "."
    return marks, (time.perf_counter() - begun) / seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sigmas", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for label, build in MODELS.items():
        model = build()
        symmetry = discover_symmetry(model, model.example())
        print(f"\n{label}: {len(symmetry.groups)} factors, 10^{symmetry.log10_order():.1f} elements")
        print(f"  {'sigma':>5s} {'start':10s} {'planted':>9s} {'element':>9s} {'ms':>8s}  per seed")
        for sigma in arguments.sigmas:
            for name, matcher in STARTS.items():
                marks, seconds = recovery(model, symmetry, sigma, arguments.seeds, matcher)
                reached, exact = arguments.seeds - marks.count("."), marks.count("=")
                print(
                    f"  {sigma:5.1f} {name:10s} {reached:4d}/{arguments.seeds:<4d} {exact:4d}/{arguments.seeds:<4d} "
                    f"{1e3 * seconds:8.1f}  {marks}",
                    flush=True,
                )
        shares = controls(model, symmetry, 0)
        words = ("nothing matched", "a random element", "matched, outside the group", "matched, unrelated")
        print("  objective / planted: " + ", ".join(f"{w} {s:.3f}" for w, s in zip(words, shares, strict=True)), flush=True)


if __name__ == "__main__":
    main()
