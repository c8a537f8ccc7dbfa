"""Rank-k truncation of every weight matrix of a state dict, in a way that commutes with the symmetry.

    W = U diag(σ) Vᵀ   →   W_k = Σ_{i ≤ k} σ_i u_i v_iᵀ ,      (P W Qᵀ)_k = P W_k Qᵀ  for orthogonal P and Q

A tensor with more than one axis is one matrix, axis 0 against all others (a convolution: out × in·kh·kw). Where units of one side
have another order for every unit of the other (experts in one tensor, the inputs of a grouped convolution), no single P and Q act:
there the tensor is one matrix for every such unit. Vectors (biases, gains) have no spectrum and stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.states import StateDict
from workbench.symmetry.entries import Stack
from workbench.symmetry.group import Symmetry
from workbench.symmetry.layout import Block, blocks, factors


@dataclass(frozen=True)
class LayerSpectrum:
    """The SVD of one tensor, as one matrix or several: left (…, m, r), values (…, r), right (…, r, n), float64.

    put: writes matrices of shape (…, m, n) into a copy of the tensor they were read from.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    put: Callable[[Tensor, Tensor], None]

    @property
    def rank(self) -> int:
        return self.values.shape[-1]

    def truncated(self, rank: int) -> Tensor:
        """W_k of shape (…, m, n)."""
        k = min(rank, self.rank)
        return (self.left[..., :k] * self.values[..., None, :k]) @ self.right[..., :k, :]

    def energy_rank(self, share: float) -> int:
        """The least k with Σ_{i ≤ k} σ_i² ≥ share · Σ σ_i², the largest over the matrices."""
        squares = self.values.square().cumsum(-1)
        below = squares < share * squares[..., -1:] * (1 - 1e-12)
        return max(1, min(self.rank, 1 + int(below.sum(-1).max())))


class Spectra:
    """The spectra of the tensors ``names`` of a state dict, computed once; ``truncated(ranks)`` is a state dict."""

    def __init__(
        self, symmetry: Symmetry, state: StateDict, names: Iterable[str], *, device: str | torch.device = "cpu"
    ) -> None:
        self.state, counted = state, set(names)
        self.layers: dict[str, tuple[LayerSpectrum, ...]] = {}
        for piece in symmetry.pieces():
            for name in piece.names:
                tensor = state[name]
                if name in counted and tensor.dim() > 1 and tensor.is_floating_point() and tensor.numel():
                    self.layers[name] = tuple(_spectra(symmetry, name, tensor.detach().to(device, torch.float64)))

    def truncated(self, ranks: int | Mapping[str, int]) -> dict[str, Tensor]:
        """The state dict with every layer at its rank (float64, on the device of the spectra); other tensors as they are."""
        out = dict(self.state)
        for name, found in self.layers.items():
            rank = ranks if isinstance(ranks, int) else ranks[name]
            if all(rank >= spectrum.rank for spectrum in found):
                continue
            tensor = torch.empty(self.state[name].shape, dtype=torch.float64, device=found[0].values.device)
            for spectrum in found:
                spectrum.put(tensor, spectrum.truncated(rank))
            out[name] = tensor
        return out

    @property
    def largest(self) -> int:
        """The largest number of singular values of one matrix; 0 where there is none."""
        return max((spectrum.rank for found in self.layers.values() for spectrum in found), default=0)

    def energy_ranks(self, share: float) -> dict[str, int]:
        """Layer -> the least rank that keeps this share of the squared norm."""
        return {name: max(spectrum.energy_rank(share) for spectrum in found) for name, found in self.layers.items()}


def _spectra(symmetry: Symmetry, name: str, tensor: Tensor) -> Iterable[LayerSpectrum]:
    entry = symmetry.tensors[name]
    apart = _apart(symmetry, name)
    if not apart:
        left, values, right = torch.linalg.svd(tensor.flatten(1), full_matrices=False)
        yield LayerSpectrum(left, values, right, _put_whole)
        return
    piece = Stack((name,), entry.layouts, entry.orders)
    for number, block in enumerate(blocks(piece.gather({name: tensor}), entry.layouts)):
        order, shape = _order(block, apart)
        matrix = block.view.permute(order).reshape(shape)
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        yield LayerSpectrum(left, values, right, _put(piece, number, order))


def _apart(symmetry: Symmetry, name: str) -> frozenset[str]:
    """The factors for whose units the tensor is one matrix each: one on the other side depends on them."""
    side = {
        label: axis > 0 for axis, layout in enumerate(symmetry.tensors[name].layouts) for label in factors(layout)
    }
    return frozenset(
        outer
        for label in side
        if label in symmetry.groups
        for outer in symmetry.groups[label].over
        if outer in side and side[outer] != side[label]
    )


def _order(block: Block, apart: frozenset[str]) -> tuple[list[int], tuple[int, ...]]:
    """The block's axes as those it is cut apart along, rows, columns; and the shape (apart, rows, columns)."""
    axes = range(block.view.dim())
    kept = [d for d in axes if block.labels[d] in apart]
    rows = [d for d in axes if d not in kept and block.origin[d] == 0]
    columns = [d for d in axes if d not in kept and block.origin[d] > 0]
    sizes = [int(np.prod([block.view.shape[d] for d in group])) for group in (kept, rows, columns)]
    return [*kept, *rows, *columns], tuple(sizes)


def _put_whole(out: Tensor, matrix: Tensor) -> None:
    out.copy_(matrix.reshape(out.shape))


def _put(piece: Stack, number: int, order: list[int]) -> Callable[[Tensor, Tensor], None]:
    name = piece.names[0]

    def put(out: Tensor, matrix: Tensor) -> None:
        gathered = piece.gather({name: out}).clone()
        view = list(blocks(gathered, piece.layouts))[number].view.permute(order)
        view.copy_(matrix.reshape(view.shape))
        out.copy_(piece.scatter(gathered)[name])

    return put
