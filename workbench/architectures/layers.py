"""Norm layers by name, shared by the convolutional architectures."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from workbench.errors import unknown_name


class ChannelLayerNorm(nn.LayerNorm):
    """LayerNorm over the channels of ``(N, C, H, W)``, at each pixel: Flax's default on NHWC, eps 1e-6.

    Unlike ``nn.LayerNorm([C, H, W])`` it treats all channels alike, so they may be permuted freely.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return normed.permute(0, 3, 1, 2)


NORMS = {
    "layer": ChannelLayerNorm,
    "group": lambda channels: nn.GroupNorm(1, channels),  # one group: statistics over C·H·W, all channels alike
    "batch": nn.BatchNorm2d,
    "none": lambda channels: nn.Identity(),
}


def norm_layer(name: str, channels: int) -> nn.Module:
    """The norm called ``name`` (layer, group, batch or none) for ``channels`` channels."""
    if name not in NORMS:
        raise unknown_name("norm", name, NORMS)
    return NORMS[name](channels)
