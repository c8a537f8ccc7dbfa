"""The proof on data: the aligned weights must give the outputs of the weights they were made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from workbench.errors import WorkbenchError
from workbench.matching.alignment import Preservation
from workbench.states import StateDict
from workbench.twins import twin, watching

# Summation order changes with the units' order. In float64 that costs ~1e-14 of the scale; a model with float32 casts inside
# costs ~1e-6. A wrong permutation costs a good part of the scale.
TOLERANCE = 1e-5


def check_preservation(model: nn.Module, moving: StateDict, aligned: StateDict, inputs: Any) -> Preservation:
    """max |f(moving, x) − f(aligned, x)| over ``inputs``, on an eval-mode copy of ``model``; the model itself is not touched.

    inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
    """
    device = next((t.device for t in moving.values()), torch.device("cpu"))
    dtype = torch.float32 if device.type == "mps" else torch.float64
    copied = twin(model, device=device, dtype=dtype)
    args, kwargs = _arguments(inputs)

    def cast(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)

    args, kwargs = pytree.tree_map(cast, (args, kwargs))
    with torch.no_grad(), watching(model):
        outputs = [
            _leaves(functional_call(copied, {name: cast(t) for name, t in state.items()}, args, kwargs))
            for state in (moving, aligned)
        ]
    change = scale = 0.0
    for first, second in zip(*outputs, strict=True):
        change = max(change, float((first - second).abs().max()))
        scale = max(scale, float(first.abs().max()))
    batch = next((t.shape[0] for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim()), 1)
    return Preservation(change, scale, TOLERANCE, int(batch), str(dtype).removeprefix("torch."))


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}


def _leaves(outputs: Any) -> list[Tensor]:
    leaves = [
        leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.numel() and leaf.is_floating_point()
    ]
    if not leaves:
        raise WorkbenchError(
            "The model gave no float tensor, so its function cannot be compared", expected="logits or other float outputs"
        )
    return leaves
