"""Weight matching of large networks and large assignments on a device, with the same checks as on the CPU. See ``run.sh``."""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import Tensor, nn

from workbench.architectures import architecture
from workbench.matching import ActivationMatching, FrankWolfe, SpectralMatching, WeightMatching, align, align_many
from workbench.matching.assignment import Assigner, assign
from workbench.matching.auction import auction
from workbench.symmetry import discover_symmetry


def synchronised(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def drawn(model: nn.Module, seed: int, device: torch.device) -> dict[str, Tensor]:
    """Weights of the size of trained ones, on the device."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, tensor in model.state_dict().items():
        scale = tensor[0].numel() ** -0.5 if tensor.dim() > 1 else 0.1
        values = scale * torch.randn(tensor.shape, generator=generator)
        out[name] = (values.abs() + 0.5 if name.endswith("running_var") else values).to(device)
    return out


def noisy(state: dict[str, Tensor], share: float, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: t + share * t.std() * torch.randn(t.shape, generator=generator).to(t) for n, t in state.items()}


def laws(device: torch.device) -> None:
    """On the device: a planted element is found, the function kept, nothing moved off the device."""
    net = architecture("convnet", width=8, norm="layer")
    model, inputs = net.build(seed=0), torch.randn(64, 1, 8, 8)
    symmetry = discover_symmetry(model, (inputs[:2],))
    a = drawn(model, 0, device)
    planted = symmetry.sample(3)
    b = symmetry.apply(planted, a)
    for method in (WeightMatching(), FrankWolfe(), SpectralMatching(), ActivationMatching()):
        found = align(symmetry, a, b, method, model=model, inputs=(inputs.to(device),), device=device)
        assert found.preservation is not None
        assert found.preservation.passed, method
        if isinstance(method, ActivationMatching):  # channels that are dead on these inputs cannot be told apart
            assert found.criterion["mean correlation of matched units"] > 0.999
        else:
            assert found.distance_after <= 1e-5 * found.distance_before, (method, found.distance_after)
        assert {t.device.type for t in found.aligned.values()} == {device.type}
    together = align_many(symmetry, [a, b, symmetry.apply(symmetry.sample(4), a)], device=device)
    assert together.cycle_error == 0
    assert float(together.distances_after.max()) <= 1e-5
    print(f"laws on {device}: weights, frank-wolfe, spectral, activations, many models: fine", flush=True)


class Encoder(nn.Module):
    """A plain transformer encoder on float tokens, without dropout."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.into, self.head = nn.Linear(32, width), nn.Linear(width, 10)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.into(x)))


def match(name: str, model: nn.Module, inputs: Tensor, device: torch.device, *, noise: float) -> None:
    """Seconds and sweeps to find a planted element under noise."""
    start = time.perf_counter()
    symmetry = discover_symmetry(model, (inputs,))
    discovered = time.perf_counter() - start
    a = drawn(model, 0, device)
    planted = symmetry.sample(1)
    b = noisy(symmetry.apply(planted, a), noise, 2)
    for label, method in (("identity start", WeightMatching()), ("anchored start", WeightMatching(start="anchored"))):
        start = synchronised(device)
        found = align(symmetry, a, b, method, device=device)
        seconds = synchronised(device) - start
        right = [float((found.element.permutations[n] == p).double().mean()) for n, p in planted.inverse().permutations.items()]
        print(
            f"{name}: {sum(t.numel() for t in a.values()) / 1e6:.1f} M parameters, {len(symmetry.groups)} factors, discovery "
            f"{discovered:.1f} s; weight matching, {label}: {seconds:.1f} s, {found.sweeps} sweeps, "
            f"{100 * np.mean(right):.1f} % of the units where they were planted",
            flush=True,
        )


def assignments(n: int, device: torch.device) -> None:
    """One large assignment: the auction to a stated gap, and the exact answer from its prices."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(n, 256, generator=generator).to(device)
    b = a[torch.randperm(n, generator=generator).to(device)] + 1.5 * torch.randn(n, 256, generator=generator).to(device)
    for kind, other in (("related", b), ("unrelated", torch.randn(n, 256, generator=generator).to(device))):
        score = a @ other.T
        start = synchronised(device)
        bids = auction(score, gap=1e-4, max_rounds=5000)
        t_auction = synchronised(device) - start
        start = synchronised(device)
        exact, value = assign(score.double(), torch.arange(n), assigner=Assigner("auction"))
        t_exact = synchronised(device) - start
        start = synchronised(device)
        _, reference = assign(score.double(), torch.arange(n), assigner=Assigner("jv"))
        t_jv = synchronised(device) - start
        assert abs(value - reference) <= 1e-6 * abs(reference)
        gap = f"gap {bids.gap:.2e} of {bids.value:.3e}" if bids.complete else "stopped early"
        print(
            f"assignment n={n}, {kind}: auction {t_auction:.2f} s ({bids.rounds} rounds, {gap}); auction then augmenting paths "
            f"{t_exact:.2f} s; augmenting paths alone {t_jv:.2f} s; {int((exact != torch.arange(n)).sum())} units moved",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="reduced size; the default on a CPU")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    small = arguments.small or device.type == "cpu"
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {where}, {'reduced' if small else 'full'} size", flush=True)
    laws(device)
    width = 2 if small else 32
    resnet = architecture("resnet", width=width).build(seed=0)
    match(f"ResNet20, width x{width}", resnet, torch.randn(2, 3, 32, 32), device, noise=0.5)
    size, layers = (96, 2) if small else (768, 12)
    encoder = Encoder(size, 12, layers).eval()
    match(f"encoder, {layers} layers of {size}", encoder, torch.randn(2, 9, 32), device, noise=0.5)
    assignments(1024 if small else 8192, device)


if __name__ == "__main__":
    main()
