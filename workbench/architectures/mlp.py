"""Multi-layer perceptrons: x ↦ W_L σ(… σ(W_1 x + b_1) …) + b_L."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from workbench.architectures.base import ARCHITECTURES
from workbench.errors import WorkbenchError, unknown_name

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "gelu": nn.functional.gelu, "silu": nn.functional.silu}


@ARCHITECTURES.register("mlp", reference="arXiv:2209.04836")
class MLP(nn.Module):
    """Fully connected network without norms: inputs - width × depth - outputs.

    depth: number of hidden layers, each ``width`` wide; widths: their widths one by one, in place of width and depth.
    activation: relu, tanh, gelu or silu. Inputs with more than one axis are flattened. Weights are ``layers.i.weight``.
    """

    def __init__(
        self,
        inputs: int = 64,
        outputs: int = 10,
        width: int = 256,
        depth: int = 2,
        widths: Sequence[int] | None = None,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        hidden = [width] * depth if widths is None else list(widths)
        sizes = [inputs, *hidden, outputs]
        if any(not isinstance(size, int) or size < 1 for size in sizes):
            raise WorkbenchError(f"An MLP of sizes {sizes} was asked for", expected="whole numbers from 1 on")
        if activation not in ACTIVATIONS:
            raise unknown_name("activation", activation, ACTIVATIONS)
        self.activation = activation
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)
