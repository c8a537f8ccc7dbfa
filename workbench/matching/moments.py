"""Streaming cross moments of two sets of units, in one pass: sums over examples and positions, whose size does not grow with them.

    Σ a, Σ b, Σ a², Σ b², Σ a bᵀ   over samples, of  a − a₀  and  b − b₀  with a₀, b₀ the means of the first batch

Products are taken in the precision of the activations and added up in float64. The shift keeps variances of units with a large mean
from being lost in rounding, and is taken out again where moments about zero are asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor


class CrossMoments:
    """Moments of n units of one model with n units of another."""

    def __init__(self) -> None:
        self.samples = 0
        self._shift: tuple[Tensor, Tensor] | None = None
        self._sums: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._product: Tensor | None = None

    def add(self, first: Tensor, second: Tensor) -> None:
        """Two batches of shape (n, samples), of the same samples in the same order."""
        if self._shift is None:
            self._shift = first.mean(1, keepdim=True), second.mean(1, keepdim=True)
            zero = torch.zeros(len(first), dtype=torch.float64, device=first.device)
            self._sums, self._squares = [zero, zero.clone()], [zero.clone(), zero.clone()]
            self._product = torch.zeros(len(first), len(second), dtype=torch.float64, device=first.device)
        assert self._product is not None
        pair = [part - shift for part, shift in zip((first, second), self._shift, strict=True)]
        for side, part in enumerate(pair):
            self._sums[side] += part.sum(1, dtype=torch.float64)
            self._squares[side] += torch.linalg.vector_norm(part, dim=1).double().square()
        self._product += pair[0] @ pair[1].mT
        self.samples += first.shape[1]

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """Of the first and of the second model's units, (n,) each."""
        assert self._shift is not None
        return tuple(s.double().squeeze(1) + total / self.samples for s, total in zip(self._shift, self._sums, strict=True))  # type: ignore[return-value]

    def covariance(self) -> Tensor:
        """E[a bᵀ] − E[a] E[b]ᵀ, (n, n) in float64."""
        assert self._product is not None
        first, second = (total / self.samples for total in self._sums)
        return self._product / self.samples - torch.outer(first, second)

    def uncentred(self) -> Tensor:
        """E[a bᵀ], (n, n)."""
        return self.covariance() + torch.outer(*self.means)

    def variances(self) -> tuple[Tensor, Tensor]:
        """Of the first and of the second model's units, never negative."""
        pairs = zip(self._squares, self._sums, strict=True)
        return tuple((q / self.samples - (s / self.samples).square()).clamp_min(0) for q, s in pairs)  # type: ignore[return-value]

    def dead(self) -> tuple[Tensor, Tensor]:
        """Which units of either model give the same value for every sample (to 1e-12 of the largest variance)."""
        return tuple(v <= 1e-12 * v.max().clamp_min(1e-300) for v in self.variances())  # type: ignore[return-value]

    def correlation(self) -> Tensor:
        """Pearson's correlation of every pair, (n, n); 0 where a unit is dead."""
        first, second = (variance.sqrt() for variance in self.variances())
        scale = torch.outer(first, second)
        dead = torch.logical_or(self.dead()[0][:, None], self.dead()[1][None, :]) | (scale == 0)
        return torch.where(dead, 0.0, self.covariance() / torch.where(dead, 1.0, scale))
