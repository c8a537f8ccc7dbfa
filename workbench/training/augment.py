"""Random changes to training images, from an explicit generator."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from workbench.errors import WorkbenchError

AUGMENTATIONS = ("none", "affine")


def augment(name: str, x: Tensor, generator: torch.Generator) -> Tensor:
    """Images ``(B, C, H, W)`` changed one by one: "none", or "affine".

    affine: scaled by .8–1.2, turned by up to ±30° and flipped left to right half of the time, in one bilinear resampling with
    zeros outside. The code of Git Re-Basin does the same in three steps.
    """
    if name == "none":
        return x
    if x.dim() != 4:
        raise WorkbenchError(
            f"Augmentation {name!r} was asked for on examples of shape {tuple(x.shape[1:])}",
            expected="images (C, H, W)",
            next_step="pass augment='none'",
        )
    scale, turn, flip = torch.rand((3, len(x)), generator=generator)
    scale, turn = 1 / (0.8 + 0.4 * scale), (2 * turn - 1) * math.pi / 6
    mirror = torch.where(flip < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(scale)
    rows = (scale * turn.cos() * mirror, -scale * turn.sin(), zero, scale * turn.sin() * mirror, scale * turn.cos(), zero)
    theta = torch.stack(rows, 1).view(-1, 2, 3).to(x.device, x.dtype)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="zeros", align_corners=False)
