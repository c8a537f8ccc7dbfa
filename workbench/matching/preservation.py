"""The proof on data: the aligned weights must give the outputs of the weights they were made from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from workbench.matching.alignment import Preservation
from workbench.states import StateDict
from workbench.twins import outputs_of

# Summation order changes with the units' order. In float64 that costs ~1e-14 of the scale; a model with float32 casts inside
# costs ~1e-6. A wrong permutation costs a good part of the scale.
TOLERANCE = 1e-5


def check_preservation(model: nn.Module, moving: StateDict, aligned: StateDict, inputs: Any) -> Preservation:
    """max |f(moving, x) − f(aligned, x)| over ``inputs``, on an eval-mode copy of ``model``; the model itself is not touched.

    inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
    """
    device = next((t.device for t in moving.values()), torch.device("cpu"))
    dtype = torch.float32 if device.type == "mps" else torch.float64
    change = scale = 0.0
    for first, second in zip(*outputs_of(model, (moving, aligned), inputs, dtype=dtype), strict=True):
        change = max(change, float((first - second).abs().max()))
        scale = max(scale, float(first.abs().max()))
    batch = next((t.shape[0] for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor) and t.dim()), 1)
    return Preservation(change, scale, TOLERANCE, int(batch), str(dtype).removeprefix("torch."))
