"""VGG for small images, with a width multiplier, as in the code of Git Re-Basin (arXiv 2209.04836)."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from workbench.architectures.base import ARCHITECTURES
from workbench.architectures.layers import norm_layer
from workbench.errors import WorkbenchError

POOL = "pool"
LAYOUTS = {
    11: (1, POOL, 2, POOL, 4, 4, POOL, 8, 8, POOL, 8, 8, POOL),
    16: (1, 1, POOL, 2, 2, POOL, 4, 4, 4, POOL, 8, 8, 8, POOL, 8, 8, 8, POOL),
}


@ARCHITECTURES.register("vgg", reference="arXiv:1409.1556")
class VGG(nn.Module):
    """VGG: 3×3 convolutions with a norm after each, five 2×2 max-pools, two dense layers of 8·width, logits.

    width: channels of the first convolution (64 is the usual size); depth: 16 (13 convolutions) or 11 (8 convolutions).
    size: height and width of the input in pixels, a multiple of 32; above 32 the flatten keeps several pixels of each channel.
    norm: layer (over channels), batch, group or none.
    """

    def __init__(
        self, outputs: int = 10, width: int = 64, depth: int = 16, norm: str = "layer", channels: int = 3, size: int = 32
    ) -> None:
        super().__init__()
        if depth not in LAYOUTS:
            raise WorkbenchError(f"A VGG of depth {depth} was asked for", expected=f"one of {sorted(LAYOUTS)}")
        if size % 32 or size < 32:
            raise WorkbenchError(f"A VGG for {size}×{size} pixels was asked for", expected="a multiple of 32, for five 2×2 pools")
        self.layout = LAYOUTS[depth]
        wide = [width * multiple for multiple in self.layout if multiple != POOL]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip([channels, *wide[:-1]], wide, strict=True))
        self.norms = nn.ModuleList(norm_layer(norm, w) for w in wide)
        sizes = [wide[-1] * (size // 32) ** 2, 8 * width, 8 * width, outputs]
        self.dense = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        i = 0
        for multiple in self.layout:
            if multiple == POOL:
                x = F.max_pool2d(x, 2)
            else:
                x = F.relu(self.norms[i](self.convs[i](x)))
                i += 1
        x = x.flatten(1)
        for layer in self.dense[:-1]:
            x = F.relu(layer(x))
        return self.dense[-1](x)
