"""Initial weights from an explicit generator: the global one is neither read nor moved.

Weights of linear and convolutional layers are LeCun normal, N(0, 1/fan_in), biases zero, norms at one and zero: the defaults of
the code of Git Re-Basin (arXiv 2209.04836), whose recipes the built-in architectures follow.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from workbench.errors import WorkbenchError


def initialise(model: nn.Module, seed: int) -> None:
    """Fill every parameter and buffer of ``model`` in module order, from a generator seeded with ``seed``.

    A module of another kind that holds parameters or buffers of its own must have a method ``initialise(generator)``; without
    one ``WorkbenchError`` is raised, since a guess would go unnoticed.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in model.named_modules():
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            if hasattr(module, "initialise"):
                module.initialise(generator)
            elif isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                fan_in = module.weight[0].numel()
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) / math.sqrt(fan_in))
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm):
                _initialise_norm(module)
            elif own:
                raise WorkbenchError(
                    f"Nothing says how to initialise {', '.join(tensor for tensor, _ in own)} of {name or 'the model'}"
                    f" ({type(module).__name__})",
                    next_step="give the class a method initialise(generator) that fills them",
                )


def _initialise_norm(module: nn.Module) -> None:
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        tensor.fill_(1 if name in ("weight", "running_var") else 0)
