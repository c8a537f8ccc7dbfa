"""Figures of the computing layers on CUDA beside the CPU; exits 1 where the two disagree. Nothing here needs pytest."""

from __future__ import annotations

import sys
import time

import torch

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.checkpoints import shipped_checkpoint
from workbench.matching import align
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.spectra import singular_alignment
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train

FAULTS: list[str] = []


def report(name: str, cpu: float, cuda: float, tolerance: float, seconds: tuple[float, float]) -> None:
    """One line; a difference above ``tolerance`` (relative, with a floor of one) is a fault."""
    off = abs(cpu - cuda) / max(1.0, abs(cpu))
    verdict = "ok" if off <= tolerance else "DIFFERS"
    print(f"{name:44s} cpu {cpu:12.6g} {seconds[0]:8.3f} s   cuda {cuda:12.6g} {seconds[1]:8.3f} s   {off:.1e} {verdict}")
    if off > tolerance:
        FAULTS.append(name)


def timed(function, *arguments, **options):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    value = function(*arguments, **options)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return value, time.perf_counter() - start


def shipped_pair() -> None:
    first, second = (shipped_checkpoint(f"digits-mlp-w256-seed{seed}") for seed in (0, 1))
    model, digits = first.architecture.build(), task("digits")
    symmetry = discover_symmetry(model, digits.example_inputs)
    # Each device once for warming up (lazy CUDA libraries), then once for the clock.
    found = {}
    for device in ("cpu", "cuda", "cpu", "cuda"):
        found[device] = timed(align, symmetry, first.state, second.state, "weights", seed=0, device=device)
    (on_cpu, s_cpu), (on_cuda, s_cuda) = found["cpu"], found["cuda"]
    report("weight matching, objective", on_cpu.objective, on_cuda.objective, 1e-9, (s_cpu, s_cuda))
    if on_cpu.element != on_cuda.element:
        print("   the two elements differ in some unit; equal objectives say it is a tie")
    profiles = {}
    for device in ("cpu", "cuda", "cpu", "cuda"):
        profiles[device] = timed(profile_path, LinearPath(first.state, on_cpu.aligned), model, digits, points=25, device=device)
    for split in ("train", "test"):
        values = [float(barrier(profiles[device][0]).sel(split=split)) for device in ("cpu", "cuda")]
        report(f"aligned {split} loss barrier", *values, 1e-5, (profiles["cpu"][1], profiles["cuda"][1]))


def wide_matching() -> None:
    """A planted permutation of a wide MLP, recovered on the device: random weights, so the answer is known exactly."""
    wide = architecture("mlp", inputs=784, outputs=10, width=2048, depth=3)
    model = wide.build(seed=0)
    state = {name: value.detach() for name, value in model.state_dict().items()}
    symmetry = discover_symmetry(model, (torch.zeros(2, 784),))
    planted = symmetry.apply(symmetry.sample(1), state)
    for device in ("cpu", "cuda"):
        found, seconds = timed(align, symmetry, state, planted, "weights", seed=0, device=device)
        print(f"{'planted, width 2048, ' + device:44s} distance after {found.distance_after:.3g}   {seconds:.2f} s")
        if found.distance_after > 1e-3:
            FAULTS.append(f"planted on {device}")


def spectra() -> None:
    first, second = (shipped_checkpoint(f"digits-mlp-w256-seed{seed}") for seed in (0, 1))
    found, seconds = timed(singular_alignment, first.state, second.state, null=False)
    print(f"{'spectra of the shipped pair':44s} {seconds:.3f} s   variables {', '.join(map(str, found.data_vars))}")


def training() -> None:
    """Eight digits MLPs in one batched run; the CUDA run must learn as well as the CPU run does."""
    digits, small = task("digits"), architecture("mlp", inputs=64, outputs=10, width=64, depth=2)
    accuracy, clock = {}, {}
    for device in ("cpu", "cuda"):
        made, clock[device] = timed(train, small, digits, seeds=tuple(range(8)), epochs=20, device=device)
        accuracy[device] = sum(float(item.metadata["test_accuracy"]) for item in made) / len(made)
    report("eight MLPs, 20 epochs, mean test accuracy", accuracy["cpu"], accuracy["cuda"], 0.01, (clock["cpu"], clock["cuda"]))


def main() -> int:
    print(f"torch {torch.__version__}  {torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'no CUDA device'}")
    for part in (shipped_pair, wide_matching, spectra, training):
        part()
    print("disagreements: " + (", ".join(FAULTS) or "none"))
    return 1 if FAULTS else 0


if __name__ == "__main__":
    sys.exit(main())
