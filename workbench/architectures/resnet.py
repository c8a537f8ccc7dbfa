"""CIFAR ResNets of depth 6n+2 with a width multiplier and convolutional shortcuts, as in the code of Git Re-Basin.

Where the shape changes, the shortcut is a strided 3×3 convolution with a norm. He et al. (arXiv 1512.03385) pad with zeros
there, which would tie the channels of a narrow stage to those of the next by position.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from workbench.architectures.base import ARCHITECTURES
from workbench.architectures.layers import norm_layer
from workbench.errors import WorkbenchError


class Block(nn.Module):
    """relu(shortcut(x) + norm2(conv2(relu(norm1(conv1(x)))))), ``(N, before, H, W)`` -> ``(N, after, H/stride, W/stride)``."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = norm_layer(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm_layer(norm, after)
        if before == after and stride == 1:
            self.shortcut = nn.Identity()
        else:
            shortcut = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
            self.shortcut = nn.Sequential(shortcut, norm_layer(norm, after))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.shortcut(x) + self.norm2(self.conv2(inner)))


@ARCHITECTURES.register("resnet", reference="arXiv:1512.03385")
class ResNet(nn.Module):
    """CIFAR ResNet: stem, three stages of (depth − 2)/6 residual blocks, mean over pixels, logits.

    depth: 6n+2 (8, 14, 20, …); width: multiplier of the stages' 16, 32 and 64 channels.
    norm: layer (over channels), group (GroupNorm(1)), batch or none.
    """

    def __init__(self, outputs: int = 10, depth: int = 20, width: int = 1, norm: str = "layer", channels: int = 3) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise WorkbenchError(f"A ResNet of depth {depth} was asked for", expected="6n+2: 8, 14, 20, 26, 32, …")
        n, wide = (depth - 2) // 6, [16 * width, 32 * width, 64 * width]
        self.stem = nn.Conv2d(channels, wide[0], 3, padding=1, bias=False)
        self.norm = norm_layer(norm, wide[0])
        self.stages = nn.ModuleList()
        for before, after in zip([wide[0], *wide[:-1]], wide, strict=True):
            blocks = [Block(before, after, 1 if before == after else 2, norm)]
            blocks += [Block(after, after, 1, norm) for _ in range(n - 1)]
            self.stages.append(nn.Sequential(*blocks))
        self.head = nn.Linear(wide[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))
