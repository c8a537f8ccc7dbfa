"""Discovery from model to proved group, in seconds: export, analysis and proof apart, against the targets.

    PYTHONPATH=tests OMP_NUM_THREADS=2 python tests/benchmarks/discovery_speed.py [--profile]

ResNet-50 is built here layer by layer (arXiv 1512.03385, 25.6 million parameters); the decoder is a Llama of 24 layers from
``transformers`` where that is installed, narrow, since cost goes with the number of graph nodes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo.entry import PLAIN, Entry, image
from zoo.plain import DenseNet, Residual, UNet, conv
from zoo.table import run


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.a, self.b = conv(inputs, width, 1), conv(width, width, 3, stride=stride)
        self.c = nn.Sequential(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.c(self.b(self.a(x))) + self.shortcut(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, 64 * 2**stage, 2 if stage and not block else 1))
            inputs = 256 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def decoder() -> tuple[nn.Module, Any]:
    from zoo.decoders import GROUPED, build

    return build("llama", {**GROUPED, "num_hidden_layers": 24})


ROWS: dict[str, tuple[float, Callable[[], tuple[nn.Module, Any]]]] = {
    "ResNet-50": (5, lambda: (resnet50(), (image(64),))),
    "decoder of 24 layers": (15, decoder),
    "UNet of depth 6, all skips": (10, lambda: (UNet(6), (image(64),))),
    "100 residual blocks": (10, lambda: (Residual(100), (image(8),))),
    "DenseNet block of 24 layers": (10, lambda: (DenseNet(24), (image(8),))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="also the functions that took longest")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warm = Entry("warm", PLAIN, "", lambda: (nn.Linear(3, 3), (torch.randn(2, 3),)))
    run(warm)  # the first export imports much
    heads = "".join(f"{head:>9s}" for head in ("target", "total", "export", "analysis", "proof", "groups"))
    print(f"{'model':30s}{heads}{'log10 order':>13s}    error")
    for name, (target, build) in ROWS.items():
        if options.only not in name:
            continue
        profile = cProfile.Profile()
        row = profile.runcall(run, Entry(name, PLAIN, "", build)) if options.profile else run(Entry(name, PLAIN, "", build))
        if row.symmetry is None:
            print(f"{name:30s}{row.failure}")
            continue
        total = sum(row.seconds.values())
        spent = "".join(f"{row.seconds[part]:9.2f}" for part in ("capture", "analysis", "prove"))
        found = f"{len(row.symmetry.groups):9d}{row.symmetry.log10_order():13.2f}  {row.error:7.0e}"
        verdict = "  OVER" * (total >= target) + "  WRONG" * bool(row.defects)
        print(f"{name:30s}{target:9.0f}{total:9.2f}{spent}{found}{verdict}", flush=True)
        if options.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(18)


if __name__ == "__main__":
    main()
