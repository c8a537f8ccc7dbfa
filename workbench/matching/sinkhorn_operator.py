"""The Sinkhorn operator and its implicit derivative (Eisenberger et al., arXiv 2205.06688; Peña et al., arXiv 2212.12042).

    P = S_τ(Z):  P_ij = exp((Z_ij + f_i + g_j) / τ)  with rows and columns that sum to 1

Forward: alternate normalisation in the log domain, until rows and columns are right. Backward: the two marginal conditions are
differentiated, not the iterations. With M the gradient that comes in, G = P ⊙ M / τ, row sums a and column sums b of P,

    [diag a   P    ] [r]   [G 1  ]
    [Pᵀ    diag b  ] [c] = [Gᵀ 1 ] ,      ∂/∂Z = G − P ⊙ (r 1ᵀ + 1 cᵀ)

solved through the Schur complement diag b − Pᵀ diag(1/a) P of size n − 1 (one equation is redundant), so that neither time nor
memory grows with the iterations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Near a permutation the system is nearly singular, and the gradient vanishes there: a trace of the diagonal keeps it solvable.
RIDGE = 1e-12


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, temperature: float, iterations: int, tolerance: float) -> Tensor:
        logs = scores / temperature
        for _ in range(iterations):
            logs = logs - logs.logsumexp(-1, keepdim=True)
            logs = logs - logs.logsumexp(-2, keepdim=True)
            if float((logs.logsumexp(-1).exp() - 1).abs().max()) <= tolerance:
                break
        soft = logs.exp()
        ctx.save_for_backward(soft)
        ctx.temperature = temperature
        return soft

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None]:
        (soft,) = ctx.saved_tensors
        shares = soft * incoming / ctx.temperature
        a, b = soft.sum(-1), soft.sum(-2)
        right_a, right_b = shares.sum(-1), shares.sum(-2)
        # The last column's multiplier is held at 0: a constant may be moved from all columns to all rows.
        inner = soft[..., :-1]
        schur = torch.diag_embed(b[..., :-1] * (1 + RIDGE)) - inner.mT @ (inner / a.unsqueeze(-1))
        known = right_b[..., :-1] - (inner.mT @ (right_a / a).unsqueeze(-1)).squeeze(-1)
        columns = torch.linalg.solve(schur, known)
        rows = (right_a - (inner @ columns.unsqueeze(-1)).squeeze(-1)) / a
        columns = torch.cat([columns, torch.zeros_like(b[..., :1])], -1)
        return shares - soft * (rows.unsqueeze(-1) + columns.unsqueeze(-2)), None, None, None


def sinkhorn(scores: Tensor, *, temperature: float = 1.0, iterations: int = 1000, tolerance: float = 1e-9) -> Tensor:
    """Doubly stochastic matrices of scores of shape (…, n, n), differentiable in them.

    iterations: at most so many normalisations of rows and columns; tolerance: they stop where every row sums to 1 ± tolerance.
    """
    return _Sinkhorn.apply(scores, temperature, iterations, tolerance)
