"""Losses and metrics by name. Each gives one number per example, so that a mean is always a sum over examples divided by N.

Outputs are ``(N, C)``, or ``(N, ..., C)`` where an example has several positions; the number of an example is then the mean
over its positions. Every function here runs under ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

PerExample = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(outputs)[target] in nats: outputs ``(N, ..., C)``, integer targets ``(N, ...)`` -> ``(N,)``."""
    losses = F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1), reduction="none")
    return _mean_over_positions(losses.reshape(targets.shape))


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over an example's entries of (output − target)²: two tensors ``(N, ...)`` of one shape -> ``(N,)``."""
    return _mean_over_positions((outputs.reshape(targets.shape) - targets).square().to(outputs.dtype))


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where argmax(outputs) is the target, else 0: outputs ``(N, ..., C)``, integer targets ``(N, ...)`` -> ``(N,)``."""
    guesses = outputs.argmax(-1)
    if guesses.shape != targets.shape:  # they would be broadcast against each other
        raise ValueError(f"guesses {tuple(guesses.shape)} for targets {tuple(targets.shape)}")
    return _mean_over_positions((guesses == targets).to(torch.float32))


def _mean_over_positions(values: Tensor) -> Tensor:
    return values if values.dim() == 1 else values.flatten(1).mean(1)


LOSSES: dict[str, PerExample] = {"cross_entropy": cross_entropy, "mse": mean_squared_error}
METRICS: dict[str, PerExample] = {"accuracy": accuracy}
