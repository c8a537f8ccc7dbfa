"""The representative of least mass among all rescalings of a network that compute the same function.

    m(t) = Σ_tensors Σ_entries w² · exp(2 Σ_s d_s t_s)         t = log of the scales, d the power of the entry

is a sum of exponentials of linear functions, hence convex in t, and strictly so along every direction that changes a weight: the
least is unique as a state (Laurent et al., arXiv 2310.08287). At the least, what goes into a ReLU unit weighs as much as what comes
out of it. L-BFGS comes near, and Newton's steps (conjugate gradients on products of the Hessian) to the last digits.

Units of which only one side has weight (dead ones, or a scale that a norm undoes) could shrink for ever: they are held, and named.
Along what is held two starts keep what they came with, so the least is unique up to that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.states import StateDict
from workbench.symmetry.element import Element
from workbench.symmetry.group import Symmetry
from workbench.symmetry.layout import Block
from workbench.symmetry.scaling import SCALE, Scaling, along, scaled_axes

# Largest gradient of log m that counts as zero, and the most iterations.
GRADIENT = 1e-14
ITERATIONS = 2000
NEWTON = 12


@dataclass(frozen=True)
class MinMass:
    """state: the rescaled state dict; element: the scales that make it; mass, min_mass: Σ w² over the parameters before and after;
    held: scaling -> how many of its units could shrink for ever and were left alone; iterations: steps taken."""

    state: dict[str, Tensor]
    element: Element
    mass: float
    min_mass: float
    held: Mapping[str, int]
    iterations: int

    @property
    def ratio(self) -> float:
        """mass / min_mass ≥ 1: how far the network is from balance."""
        return self.mass / self.min_mass if self.min_mass else 1.0


def min_mass(symmetry: Symmetry, state: StateDict) -> MinMass:
    """Rescale ``state`` by the positive scales of ``symmetry`` to the least sum of squares; its function stays what it is.

    symmetry: found with ``scales=True``; state: as for ``Symmetry.apply``, not changed. Buffers are scaled along and not counted.
    Raises WorkbenchError where the symmetry has no scales, or the least cannot be reached.
    """
    symmetry.require_fits(state)
    scalings = [scaling for scaling in symmetry.scalings.values() if scaling.kind == SCALE]
    if not scalings:
        raise WorkbenchError(
            "The symmetry holds no scales",
            expected="a symmetry found with discover_symmetry(..., scales=True)",
            cause="scales were not asked for, or no unit of this model may be rescaled",
        )
    mass = _Mass(symmetry, state, scalings)
    t, iterations = mass.least()
    element = symmetry.element({}, {scaling.name: torch.exp(part) for scaling, part in mass.parts(t)})
    moved = symmetry.apply(element, state)
    return MinMass(moved, element, mass.fixed + mass.scaled_at_0, _total(symmetry, moved), mass.held, iterations)


def _counted(symmetry: Symmetry) -> list[str]:
    return [
        name
        for name, entry in symmetry.tensors.items()
        if name not in symmetry.aliases and not entry.buffer and entry.role in ("moved", "fixed")
    ]


def _total(symmetry: Symmetry, state: StateDict) -> float:
    return math.fsum(float(state[name].detach().double().square().sum()) for name in _counted(symmetry))


class _Mass:
    """m(t) on squared weights summed over all axes that no scale touches."""

    def __init__(self, symmetry: Symmetry, state: StateDict, scalings: list[Scaling]) -> None:
        self.scalings = scalings
        self.terms: list[tuple[Tensor, list[tuple[int, Block, int, int]]]] = []  # squares, (scaling, block, axis, power)
        counted = set(_counted(symmetry))
        for piece in symmetry.pieces():
            if not counted.issuperset(piece.names):
                continue
            squares = piece.gather(state).detach().to("cpu", torch.float64).square()
            touched: dict[int, list[tuple[int, Block, int, int]]] = {}
            for number, scaling in enumerate(scalings):
                for place, block, axis, power in scaled_axes(squares, piece.layouts, piece.names[0], scaling):
                    touched.setdefault(place, []).append((number, block, axis, power))
            for leaves in touched.values():
                view = leaves[0][1].view
                shapes = [along(block, axis, scalings[n], torch.empty(scalings[n].shape)).shape for n, block, axis, _ in leaves]
                rest = [d for d in range(view.dim()) if all(shape[d] == 1 for shape in shapes)]
                self.terms.append((view.sum(rest, keepdim=True) if rest else view.clone(), leaves))
        self.scaled_at_0 = math.fsum(float(squares.sum()) for squares, _ in self.terms)
        self.fixed = _total(symmetry, state) - self.scaled_at_0
        self._free, self.held = self._movable()

    def parts(self, t: Tensor) -> list[tuple[Scaling, Tensor]]:
        """The flat vector cut into one array for each scaling; held units are 0."""
        sizes = [math.prod(scaling.shape) for scaling in self.scalings]
        cut = zip(self.scalings, t.split(sizes), self._free.split(sizes), strict=True)
        return [(scaling, torch.where(free, part, 0.0).reshape(scaling.shape)) for scaling, part, free in cut]

    def __call__(self, t: Tensor) -> Tensor:
        """log of the scaled part of the mass."""
        parts = [part for _, part in self.parts(t)]
        logs = []
        for squares, leaves in self.terms:
            power = sum(p * along(block, axis, self.scalings[n], parts[n]) for n, block, axis, p in leaves)
            logs.append((squares.log() + 2 * power).flatten())
        return torch.logsumexp(torch.cat(logs), 0)

    def _movable(self) -> tuple[Tensor, dict[str, int]]:
        """Which units have weight both with positive and with negative powers."""
        free, held = [], {}
        for number, scaling in enumerate(self.scalings):
            sides = torch.zeros(2, *scaling.shape, dtype=torch.float64)
            for squares, leaves in self.terms:
                own = [(block, axis, power) for n, block, axis, power in leaves if n == number]
                if not own:
                    continue
                t = torch.zeros(scaling.shape, dtype=torch.float64, requires_grad=True)
                power = sum(p * along(block, axis, scaling, t) for block, axis, p in own)
                for side, sign in enumerate((1, -1)):
                    (gradient,) = torch.autograd.grad((squares * (sign * power)).sum(), t, retain_graph=True)
                    sides[side] += gradient.clamp(min=0)
            both = (sides > 0).all(0)
            free.append(both.flatten())
            if not bool(both.all()):
                held[scaling.name] = int((~both).sum())
        return torch.cat(free), held

    def least(self) -> tuple[Tensor, int]:
        """argmin of log m, and the iterations."""
        from scipy.optimize import minimize
        from scipy.sparse.linalg import LinearOperator, cg

        def value(t: np.ndarray) -> tuple[float, np.ndarray]:
            point = torch.from_numpy(t.copy()).requires_grad_()
            result = self(point)
            (gradient,) = torch.autograd.grad(result, point)
            return float(result.detach()), gradient.numpy()

        def hessian(t: np.ndarray, direction: np.ndarray) -> np.ndarray:
            point = torch.from_numpy(t.copy()).requires_grad_()
            (gradient,) = torch.autograd.grad(self(point), point, create_graph=True)
            (product,) = torch.autograd.grad(gradient @ torch.from_numpy(direction.copy()), point)
            return product.numpy()

        start = np.zeros(self._free.numel())
        if not self.terms or not bool(self._free.any()):
            return torch.from_numpy(start), 0
        options = {"gtol": 1e-7, "ftol": 0.0, "maxiter": ITERATIONS, "maxfun": 2 * ITERATIONS}
        found = minimize(value, start, jac=True, method="L-BFGS-B", options=options)
        t, steps, left = found.x, 0, float(np.abs(found.jac).max())
        # The value of m no longer tells points this near apart; its gradient does.
        while left > GRADIENT and steps < NEWTON and np.isfinite(t).all():
            here = t
            operator = LinearOperator((t.size, t.size), matvec=lambda d, here=here: hessian(here, d), dtype=np.float64)
            move, _ = cg(operator, -value(t)[1], rtol=1e-6, maxiter=200)
            after = float(np.abs(value(t + move)[1]).max())
            steps += 1
            if not after < left:
                break
            t, left = t + move, after
        if not np.isfinite(t).all() or left > 1e-7:
            raise WorkbenchError(
                f"The least mass was not reached in {found.nit + steps} iterations (a gradient of {left:.1e} is left)",
                cause="some scales may shrink weights for ever together, though none does alone",
                next_step="look at symmetry.scalings, and use a symmetry with fewer of them",
            )
        return torch.from_numpy(t), int(found.nit) + steps
