"""Soft elements: the convex hull of a symmetry group, its action on weights, and its vertices.

A factor's permutation matrices fill a polytope, the doubly stochastic matrices (Birkhoff). A soft element holds for every factor

    X_p[s, i, j] ≥ 0 ,   Σ_(s, j) X_p[s, i, j] = Σ_(s, i) X_p[s, i, j] = 1       destination i, source j, sign pattern s

and for a factor f with one arrangement per unit of another one, g (a wreath product: heads and what is inside them)

    X_f[s, β, σ, i, j] ,   Σ_(s, j) X_f[s, β, σ, i, j] = Σ_(s, i) X_f[s, β, σ, i, j] = P_g[β, σ] ,   P_g = Σ_s X_g[s]

which is the hull of {P_g[β, σ] Q_β[i, j]}, and not a product of two polytopes. Weights are moved by X axis by axis:
(X W)[i] = Σ_j X[i, j] W[j]. Where one block holds two factors that depend on the same g, the first takes X_f and the second its
arrangement at the destination, Σ_σ X_f'[β, σ]; both orders are averaged. At a vertex all of this is the element itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from workbench.matching import wreath
from workbench.matching.assignment import Assigner, assign
from workbench.matching.problem import MatchingProblem
from workbench.symmetry.element import Element
from workbench.symmetry.entries import FIXED, MOVED
from workbench.symmetry.layout import Block, blocks

Soft = Mapping[str, Tensor]
Exponents = Callable[[str, int], tuple[int, ...]]


class Relaxation:
    """The hull of the group of a problem. Outer factors of nests that the search does not cover (``held``) stay where they are."""

    def __init__(self, problem: MatchingProblem) -> None:
        self.problem, groups = problem, problem.symmetry.groups
        self.held = tuple(n for n in groups if problem.dependents[n] and not wreath.can_move(problem, n))
        self.outer = {n: g.over[0] for n, g in groups.items() if len(g.over) == 1 and g.over[0] in groups}
        self.outer = {n: g for n, g in self.outer.items() if g not in self.held}
        self.factors = tuple(n for n in groups if n not in self.held)
        self.patterns = {n: self._all_patterns(n) for n in self.factors}
        self.assigner = Assigner()

    def _all_patterns(self, name: str) -> Tensor:
        """(2^K, K): the choices of the factor's K signs, 0 or 1; row 0 is none."""
        signs = len(self.problem.sign_names[name])
        choices = torch.cartesian_prod(*[torch.arange(2)] * signs) if signs else torch.zeros(1, 0, dtype=torch.int64)
        return choices.reshape(2**signs, signs)

    # -- points

    def of(self, element: Element) -> dict[str, Tensor]:
        """The vertex of an element."""
        out = {}
        for name in self.factors:
            units = element.permutations[name]
            hard = torch.nn.functional.one_hot(units, units.shape[-1]).double()
            if name in self.outer:
                g = element.permutations[self.outer[name]]
                spread = torch.zeros(len(g), len(g), *hard.shape[1:], dtype=torch.float64)
                spread[torch.arange(len(g)), g] = hard
                hard = spread
            rows = self._signs_of(element, name)
            at = rows[:, None] if name in self.outer else rows
            stacked = [hard * (at == s).unsqueeze(-1) for s in range(len(self.patterns[name]))]
            out[name] = torch.stack(stacked).to(self.problem.device)
        return out

    def _signs_of(self, element: Element, name: str) -> Tensor:
        row = torch.zeros(element.permutations[name].shape, dtype=torch.int64)
        for sign in self.problem.sign_names[name]:
            row = 2 * row + (element.scales[sign] < 0 if sign in element.scales else 0)
        return row

    def barycentre(self) -> dict[str, Tensor]:
        """Every unit spread evenly over all places, no sign changed."""
        out = {}
        for name, group in self.problem.symmetry.groups.items():
            if name not in self.factors:
                continue
            copies = (group.over_sizes[0],) * 2 if name in self.outer else group.over_sizes
            share = 1 / group.size / (group.over_sizes[0] if name in self.outer else 1)
            point = torch.zeros(len(self.patterns[name]), *copies, group.size, group.size, dtype=torch.float64)
            point[0] = share
            out[name] = point.to(self.problem.device)
        return out

    # -- action

    def objective(self, soft: Soft) -> Tensor:
        """Σ_k ⟨A_k, X(B_k)⟩, differentiable in the entries of ``soft``."""
        total = torch.full((), self.problem.constant, dtype=torch.float64, device=self.problem.device)
        for index, (anchor, _) in enumerate(self.problem.blocks):
            total = total + (anchor.view * self.moved(index, soft)).sum()
        return total

    @property
    def degree(self) -> int:
        """The degree of the objective as a polynomial along a straight segment of soft elements."""
        counts = [sum(label in self.factors for label in block.labels) for block, _ in self.problem.blocks]
        return max(counts, default=1)

    def moved(self, index: int, soft: Soft) -> Tensor:
        """The moving model's block of number ``index``, moved by a soft element."""
        block = self.problem.blocks[index][1]
        return self.act(block, soft, lambda name, axis: self.problem.exponents(name, index, axis))

    def act(self, block: Block, soft: Soft, exponents: Exponents) -> Tensor:
        """``block.view`` moved along all its axes; exponents(factor, axis): which of the factor's signs act there."""
        joint: dict[int, list[int]] = {}  # axis of an outer factor -> axes of the factors that depend on it there
        for axis, label in enumerate(block.labels):
            if label in self.outer:
                joint.setdefault(block.coordinate_of(axis, self.outer[label]), []).append(axis)
        view = block.view
        for axis, label in enumerate(block.labels):
            if label in self.factors and axis not in joint and label not in self.outer:
                matrix = self._matrix(soft[label], self.patterns[label], exponents(label, axis))
                view = self._single(block, view, axis, matrix)
        for axis, inner in joint.items():
            leads = [self._nested(block, view, axis, [lead, *[d for d in inner if d != lead]], soft, exponents) for lead in inner]
            view = leads[0] if len(leads) == 1 else sum(leads) / len(leads)
        return view

    def _matrix(self, point: Tensor, patterns: Tensor, exponents: tuple[int, ...]) -> Tensor:
        """Σ_s χ_s X[s]: what a block sees on which the signs act with these exponents."""
        if not any(exponents):
            return point.sum(0) if len(point) > 1 else point[0]
        chi = 1 - 2 * ((patterns @ torch.tensor(exponents)) % 2)
        return torch.einsum("s,s...->...", chi.to(point), point)

    def _single(self, block: Block, view: Tensor, axis: int, matrix: Tensor) -> Tensor:
        """One axis moved by (n, n), or by (*copies, n, n) where every copy of a held or fixed outer factor has its own."""
        over = self.problem.symmetry.groups[block.labels[axis]].over  # type: ignore[index]
        coordinates = [block.coordinate_of(axis, name) for name in over]
        front = view.movedim([*coordinates, axis], [*range(len(coordinates)), -1])
        middle = front.dim() - len(coordinates) - 1
        spread = matrix.reshape(*matrix.shape[:-2], *[1] * max(middle - 1, 0), *matrix.shape[-2:])
        moved = front @ spread.mT if middle else (matrix @ front.unsqueeze(-1)).squeeze(-1)
        return moved.movedim([*range(len(coordinates)), -1], [*coordinates, axis])

    def _nested(self, block: Block, view: Tensor, axis: int, inner: list[int], soft: Soft, exponents: Exponents) -> Tensor:
        """The outer axis together with the factors that depend on it; the first of them leads."""
        first = block.labels[inner[0]]
        matrix = self._matrix(soft[first], self.patterns[first], exponents(first, inner[0]))
        front = view.movedim([axis, inner[0]], [0, 1])
        both = matrix.transpose(1, 2).flatten(2).flatten(0, 1)  # (β i, σ j)
        moved = (both @ front.reshape(both.shape[1], -1)).reshape(front.shape)
        out = moved.movedim([0, 1], [axis, inner[0]])
        for other in inner[1:]:
            label = block.labels[other]
            here = self._matrix(soft[label], self.patterns[label], exponents(label, other)).sum(1)
            front = out.movedim([axis, other], [0, -1])
            turned = front.flatten(1, -2) @ here.mT if front.dim() > 2 else (here @ front.unsqueeze(-1)).squeeze(-1)
            out = turned.reshape(front.shape).movedim([0, -1], [axis, other])
        return out

    # -- vertices

    def vertex(self, scores: Soft, current: Element) -> Element:
        """argmax over elements g of Σ_p ⟨scores_p, g_p⟩: one assignment per factor, nested where factors depend on others.

        A unit keeps the place it has in ``current`` where another one is no better.
        """
        permutations, rows = dict(current.permutations), {}
        best = {name: score.detach().cpu().max(0) for name, score in scores.items()}
        for name in self.factors:
            if name in self.outer:
                continue
            value = best[name].values
            inside = [f for f, g in self.outer.items() if g == name]
            if inside:
                tables: dict[str | None, Tensor] = {None: value, **{f: best[f].values for f in inside}}
                places, arranged = wreath.assign_nested(self.problem, name, current, tables)
                permutations |= {name: places, **arranged}
            elif value.dim() == 2:
                permutations[name], _ = assign(value, permutations[name], assigner=self.assigner, key=name)
            else:
                units = permutations[name].clone()
                for copy in np.ndindex(units.shape[:-1]):
                    units[copy], _ = assign(value[copy], units[copy], assigner=self.assigner, key=(name, copy))
                permutations[name] = units
        for name in self.factors:
            rows[name] = self._rows(best[name].indices, permutations, name)
        return self._element(current, permutations, rows)

    def _rows(self, which: Tensor, permutations: Mapping[str, Tensor], name: str) -> Tensor:
        """The sign pattern of every unit: the one that the chosen entry's score came from."""
        if name in self.outer:
            g = permutations[self.outer[name]]
            which = which[torch.arange(len(g)), g]
        return which.gather(-1, permutations[name].unsqueeze(-1)).squeeze(-1)

    def _element(self, current: Element, permutations: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> Element:
        scales = dict(current.scales)
        for name, chosen in rows.items():
            for number, sign in enumerate(self.problem.sign_names[name]):
                scales[sign] = 1.0 - 2.0 * self.patterns[name][chosen, number].double()
        return replace(current, permutations=permutations, scales=scales)


class SoftState:
    """The moving state dict of a problem, moved by soft elements: every tensor that is moved, running statistics included."""

    def __init__(self, problem: MatchingProblem) -> None:
        tensors = problem.symmetry.tensors
        names = [n for n, t in problem.moving.items() if t.is_floating_point() and tensors[n].role in (MOVED, FIXED)]
        self.whole = problem.on(problem.moving, problem.moving, names=names)
        self.relaxation = Relaxation(self.whole)
        self.numbers: dict[str, list[tuple[int, int]]] = {}
        for index, (name, part) in enumerate(self.whole.sources):
            self.numbers.setdefault(name, []).append((index, part))

    def __call__(self, soft: Soft) -> dict[str, Tensor]:
        """Differentiable in ``soft``; float64, on the device of the problem. At a vertex it is ``symmetry.apply``."""
        symmetry, moving = self.whole.symmetry, self.whole.moving
        out = {name: tensor.to(self.whole.device) for name, tensor in moving.items()}
        for piece in symmetry.pieces():
            if piece.names[0] not in self.numbers:
                continue
            moved = piece.gather(moving).detach().to(self.whole.device, torch.float64).clone()
            views = list(blocks(moved, piece.layouts))
            for index, part in self.numbers[piece.names[0]]:
                views[part].view.copy_(self.relaxation.moved(index, soft))
            out |= piece.scatter(moved)
        return out | {name: out[first] for name, first in symmetry.aliases.items() if name in out}
