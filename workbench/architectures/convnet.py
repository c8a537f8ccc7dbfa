"""A small convolutional network with norms, for 8×8 digits up to CIFAR."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from workbench.architectures.base import ARCHITECTURES
from workbench.architectures.layers import norm_layer
from workbench.errors import WorkbenchError


@ARCHITECTURES.register("convnet")
class ConvNet(nn.Module):
    """Three 3×3 convolutions (width, 2·width, 2·width), a norm after each, two 2×2 max-pools, flatten, logits.

    size: height and width of the input in pixels, a multiple of 4. The flatten keeps (size/4)² pixels of each channel, so a
    channel moves a block of columns of the last layer. norm: batch, layer (over channels), group or none. Images may come as
    flat rows.
    """

    def __init__(self, outputs: int = 10, width: int = 16, norm: str = "batch", channels: int = 1, size: int = 8) -> None:
        super().__init__()
        if size < 4 or size % 4:
            raise WorkbenchError(f"A convnet for {size}×{size} pixels was asked for", expected="a multiple of 4, for two 2×2 pools")
        wide = [width, 2 * width, 2 * width]
        # A norm's shift makes a bias before it redundant.
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=norm == "none") for a, b in zip([channels, *wide[:-1]], wide, strict=True)
        )
        self.norms = nn.ModuleList(norm_layer(norm, w) for w in wide)
        self.head = nn.Linear(wide[-1] * (size // 4) ** 2, outputs)

        self.shape = (channels, size, size)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            x = x.unflatten(1, self.shape)
        x = F.relu(self.norms[0](self.convs[0](x)))
        x = F.max_pool2d(F.relu(self.norms[1](self.convs[1](x))), 2)
        x = F.max_pool2d(F.relu(self.norms[2](self.convs[2](x))), 2)
        return self.head(x.flatten(1))
