"""Planted permutations: B is A moved by a random element (and noise); does weight matching find the way back?

Gaussian networks, no training. A recovery is exact when the element found is the inverse of the planted one. For residual
networks ~50 % from the identity start is expected: the shared stream has local optima; the anchored start, 16 starts and
Frank–Wolfe should find all. Two unrelated networks of two hidden layers of 3 or 4: how often each method is at the optimum, which
is known by trying all elements.
Also the counterexample of Git Re-Basin A.6: two zero-error networks for which no permutation removes the barrier (0.25).

    python tests/benchmarks/planted.py --seeds 10
"""

from __future__ import annotations

import argparse
import itertools
import time

import torch

from workbench.matching import FrankWolfe, Matcher, MatchingProblem, WeightMatching, align
from workbench.paths import LinearPath
from workbench.symmetry import PermutationSpec, Symmetry


def gaussian_mlp(widths: list[int], seed: int) -> tuple[dict[str, torch.Tensor], Symmetry]:
    generator = torch.Generator().manual_seed(seed)
    state, axes, last = {}, {}, len(widths) - 2
    for i, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
        out, into = (f"P{i}" if i < last else None), (f"P{i - 1}" if i else None)
        state[f"{i}.weight"] = torch.randn(n_out, n_in, generator=generator) / n_in**0.5
        state[f"{i}.bias"] = torch.zeros(n_out)
        axes[f"{i}.weight"], axes[f"{i}.bias"] = (out, into), (out,)
    return state, PermutationSpec(axes).to_symmetry(state)


def gaussian_residual(blocks: int, width: int, stem: int, seed: int) -> tuple[dict[str, torch.Tensor], Symmetry]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"stem": (width, stem)}
    axes: dict[str, tuple[str | None, ...]] = {"stem": ("S", None)}
    for i in range(blocks):
        shapes |= {f"{i}.in": (width, width), f"{i}.out": (width, width)}
        axes |= {f"{i}.in": (f"I{i}", "S"), f"{i}.out": ("S", f"I{i}")}
    shapes["head"], axes["head"] = (10, width), (None, "S")
    state = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return state, PermutationSpec(axes).to_symmetry(state)


def plant(state: dict, symmetry: Symmetry, sigma: float, seed: int) -> tuple[dict, object]:
    """A moved by a random element, plus noise of ``sigma`` times each tensor's standard deviation."""
    planted = symmetry.sample(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    moved = symmetry.apply(planted, state)
    for name, tensor in moved.items():
        moved[name] = tensor + sigma * tensor.std() * torch.randn(tensor.shape, generator=generator)
    return moved, planted


def row(label: str, make, sigma: float, seeds: int, matcher: Matcher) -> None:
    exact, sweeps, seconds = 0, [], []
    for seed in range(seeds):
        state, symmetry = make(seed)
        moved, planted = plant(state, symmetry, sigma, 1000 + seed)
        start = time.perf_counter()
        found = align(symmetry, state, moved, matcher, seed=seed)
        seconds.append(time.perf_counter() - start)
        sweeps.append(found.sweeps)
        exact += found.element == planted.inverse()
    mean = sum(seconds) / seeds
    print(f"{label:44s} {exact:3d}/{seeds:<3d}  sweeps {min(sweeps)}–{max(sweeps)}  {mean * 1e3:8.1f} ms")


def brute_force(width: int, pairs: int) -> None:
    """Shares of pairs at the optimum over all (width!)² elements; nothing may lie above it."""
    methods = {
        "one run": WeightMatching(),
        "16 starts": WeightMatching(restarts=15),
        "Frank–Wolfe, identity": FrankWolfe(start="identity"),
        "Frank–Wolfe, barycentre": FrankWolfe(),
        "Frank–Wolfe, identity, not polished": FrankWolfe(start="identity", polish=False),
        "Frank–Wolfe, barycentre, not polished": FrankWolfe(polish=False),
    }
    hits = dict.fromkeys(methods, 0)
    orders = list(itertools.permutations(range(width)))
    for seed in range(pairs):
        a, symmetry = gaussian_mlp([width + 1, width, width, 3], seed)
        b, _ = gaussian_mlp([width + 1, width, width, 3], 10_000 + seed)
        problem = MatchingProblem(symmetry, a, b)
        best = max(problem.objective(symmetry.element({"P0": p, "P1": q})) for p in orders for q in orders)
        for name, method in methods.items():
            reached = align(symmetry, a, b, method, seed=seed).objective
            assert reached <= best + 1e-9, (name, reached, best)
            hits[name] += abs(reached - best) <= 1e-9
    print(f"two layers of {width}, unrelated: " + "; ".join(f"{name} {count}/{pairs}" for name, count in hits.items()))


def counterexample() -> None:
    axes = {"w1": ("P1", None), "b1": ("P1",), "w2": ("P2", "P1"), "b2": ("P2",), "w3": (None, "P2")}
    vectors = {
        "A": ([[-1, 0], [0, -1]], [1, 0], [[-1, 0], [0, 1]], [1, 0], [[-1, -1]]),
        "B": ([[1, 0], [0, 1]], [0, 1], [[1, 0], [0, -1]], [0, 1], [[-1, -1]]),
    }
    a, b = ({n: torch.tensor(v, dtype=torch.float64) for n, v in zip(axes, vectors[k], strict=True)} for k in "AB")
    symmetry = PermutationSpec(axes).to_symmetry(a)
    x = torch.rand(200_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    label = (x[:, 0] < 0) & (x[:, 1] > 0)

    def error(s: dict) -> float:
        h = torch.relu(torch.relu(x @ s["w1"].T + s["b1"]) @ s["w2"].T + s["b2"])
        return float((((h @ s["w3"].T)[:, 0] >= 0) != label).double().mean())

    print(f"\ncounterexample: errors of A and B {error(a):.3f} {error(b):.3f}")
    for first, second in itertools.product(([0, 1], [1, 0]), repeat=2):
        element = symmetry.element({"P1": first, "P2": second})
        moved = symmetry.apply(element, b)
        worst = max(error(LinearPath(a, moved)(t / 24)) for t in range(25))
        objective = sum(float((a[n] * moved[n]).sum()) for n in a)
        print(f"  P1 {first} P2 {second}: objective {objective:5.1f}, largest error on the line {worst:.3f}")
    found = align(symmetry, a, b)
    print(f"  weight matching chooses {dict(found.units_moved)} with objective {found.objective:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    plain, anchored = WeightMatching(), WeightMatching(start="anchored")
    restarts = WeightMatching(restarts=15)
    print("MLP, planted, no noise (784-w-w-w-10)")
    for width in (64, 128, 256, 512):
        row(f"width {width}", lambda s, w=width: gaussian_mlp([784, w, w, w, 10], s), 0.0, arguments.seeds, plain)
    print("MLP, noise ladder (784-256-256-256-10), sigma in units of the weights' s.d.")
    for sigma in (0.5, 1.0, 2.0, 4.0):
        row(f"sigma {sigma}", lambda s: gaussian_mlp([784, 256, 256, 256, 10], s), sigma, arguments.seeds, plain)
    print("residual, width 64, planted")
    for blocks, stem in ((9, 27), (2, 27), (9, 784)):
        methods = {
            "identity start": plain,
            "anchored start": anchored,
            "16 starts": restarts,
            "Frank–Wolfe, identity": FrankWolfe(start="identity"),
            "Frank–Wolfe, barycentre": FrankWolfe(),
        }
        for name, chosen in methods.items():
            row(
                f"{blocks} blocks, stem fan-in {stem}, {name}",
                lambda s, b=blocks, f=stem: gaussian_residual(b, 64, f, s),
                0.0,
                arguments.seeds,
                chosen,
            )
    for width in (3, 4):
        brute_force(width, 40)
    counterexample()


if __name__ == "__main__":
    main()
