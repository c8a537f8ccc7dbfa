"""Streaming cross moments of two sets of units, in one pass: sums over examples and positions, whose size does not grow with them.

    Σ a, Σ b, Σ a², Σ b², Σ a bᵀ   over samples, of  a − a₀  and  b − b₀

Products are taken in the precision of the activations and added up in float64. Where the first batch shows a mean far larger than
the deviation, a₀ and b₀ are its means, which keeps variances from being lost in rounding; elsewhere they are 0. Moments about zero
have the shift taken out again.
"""

from __future__ import annotations

import torch
from torch import Tensor

# In single precision a variance is good to some 1e-7 · (1 + mean² / variance): below this ratio no shift is needed.
UNSHIFTED = 10.0


class CrossMoments:
    """Moments of n units of one model with n units of another."""

    def __init__(self) -> None:
        self.samples = 0
        self._shift: list[Tensor | None] | None = None
        self._sums: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._product: Tensor | None = None

    def add(self, first: Tensor, second: Tensor) -> None:
        """Two batches of shape (samples, n), of the same samples in the same order."""
        if self._shift is None:
            self._shift = [_shift(first), _shift(second)]
            zero = torch.zeros(first.shape[1], dtype=torch.float64, device=first.device)
            self._sums, self._squares = [zero, zero.clone()], [zero.clone(), zero.clone()]
            self._product = zero.new_zeros(first.shape[1], second.shape[1])
        assert self._product is not None
        pair = [part if s is None else part - s for part, s in zip((first, second), self._shift, strict=True)]
        for side, part in enumerate(pair):
            self._sums[side] += part.sum(0)
            self._squares[side] += part.square().sum(0)
        self._product += pair[0].mT @ pair[1]
        self.samples += len(first)

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """Of the first and of the second model's units, (n,) each."""
        assert self._shift is not None
        means = [total / self.samples for total in self._sums]
        first, second = (m if s is None else m + s.double() for m, s in zip(means, self._shift, strict=True))
        return first, second

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


def _shift(part: Tensor) -> Tensor | None:
    """The mean of every unit, or None where no unit's mean outweighs its deviation by far."""
    variance, mean = torch.var_mean(part, dim=0, correction=0)
    far = mean.square() > UNSHIFTED * variance
    return mean if bool((far & (mean != 0)).any()) else None
