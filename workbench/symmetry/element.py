"""Elements of a symmetry group: one permutation per factor.

Convention, stated once: ``(P w)[i] = w[perm[i]]`` (the "take" form). With it the inverse is ``argsort(perm)``, and ``g @ h``
means *first h, then g*, so that ``apply(g @ h, w) == apply(g, apply(h, w))`` and its index array is ``h.perm[g.perm]``.

A factor may depend on other factors (heads, grouped convolutions: a wreath product). Its array then has one leading axis per
factor it is *over*, indexed by **destination** coordinates: entry (β, j) of the result is read from (π_over[β], perm[β][j]).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.symmetry.layout import Block, Layout, blocks
from workbench.symmetry.scaling import SIGN, Scaling, scaled


@dataclass(frozen=True, eq=False)
class Element:
    """One member of the group.

    permutations: factor -> int64 array of shape (*sizes of the factors it is over, n), on the CPU; over: factor -> names of
    the factors it is over (left out where there are none); scales: name of a scale or sign -> float64 array of its shape, in
    **destination** coordinates (units are moved first, then scaled); actions: what those names stand for.
    """

    permutations: Mapping[str, Tensor]
    over: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scales: Mapping[str, Tensor] = field(default_factory=dict)
    actions: Mapping[str, Scaling] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, perm in self.permutations.items():
            n = perm.shape[-1]
            if perm.dtype != torch.int64 or not torch.equal(perm.sort(-1).values, torch.arange(n).expand(perm.shape)):
                raise WorkbenchError(
                    f"The array for factor {name!r} is not a permutation of 0…{n - 1}", expected="int64, each index once"
                )
        for name, values in self.scales.items():
            wanted = self.actions[name]
            fine = bool((values.abs() == 1).all()) if wanted.kind == SIGN else bool(((values > 0) & values.isfinite()).all())
            if tuple(values.shape) != wanted.shape or not fine:
                raise WorkbenchError(
                    f"The numbers for {name!r} do not fit",
                    expected=f"{'1 and −1' if wanted.kind == SIGN else 'positive numbers'} of shape {wanted.shape}",
                )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Element):
            return False
        actions = {**other.actions, **self.actions}
        a, b = replace(self, actions=actions), replace(other, actions=actions)
        return (
            self.permutations.keys() == other.permutations.keys()
            and all(torch.equal(perm, other.permutations[name]) for name, perm in self.permutations.items())
            and all(torch.equal(a._scale(name), b._scale(name)) for name in {**self.scales, **other.scales})
        )

    def _scale(self, name: str) -> Tensor:
        """The numbers of a scaling; 1 where none are held."""
        return self.scales[name] if name in self.scales else torch.ones((), dtype=torch.float64).expand(self.actions[name].shape)

    def __hash__(self) -> int:
        return hash(tuple(sorted((name, tuple(perm.flatten().tolist())) for name, perm in self.permutations.items())))

    def _sources(self, name: str) -> tuple[Tensor, ...]:
        """For every destination coordinate β of the factors ``name`` is over, the source coordinates, one grid per factor.

        A factor it is over may itself depend on others; those are then among the ones ``name`` is over.
        """
        return self._grids(self.over.get(name, ()), self.permutations[name].shape[:-1])

    def _grids(self, outer: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        grids = torch.meshgrid(*[torch.arange(size) for size in sizes], indexing="ij") if sizes else ()
        at = dict(zip(outer, grids, strict=True))
        return tuple(
            self.permutations[other][tuple(at[inner] for inner in (*self.over.get(other, ()), other))]
            if other in self.permutations
            else at[other]
            for other in outer
        )

    def __matmul__(self, first: Element) -> Element:
        """``self @ first``: apply ``first``, then ``self``."""
        if self.permutations.keys() != first.permutations.keys():
            raise WorkbenchError("The two elements belong to different groups", expected="the same factors in both")
        out = {}
        for name, perm in self.permutations.items():
            inner = first.permutations[name][self._sources(name)] if self.over.get(name) else first.permutations[name]
            out[name] = torch.gather(inner, -1, perm)
        actions = {**first.actions, **self.actions}
        one, two = replace(self, actions=actions), replace(first, actions=actions)
        scales = {name: one._scale(name) * one._pulled(two._scale(name), name) for name in {**self.scales, **first.scales}}
        return Element(out, self.over, scales, actions)

    def _pulled(self, values: Tensor, name: str) -> Tensor:
        """Numbers of a scaling that were there before the units moved, in destination coordinates: v(π(β), π_β(i))."""
        action = self.actions[name]
        *outer, units = self._grids((*action.over, action.factor), action.shape)
        return values[(*outer, units)]

    def inverse(self) -> Element:
        """The element g⁻¹ with ``g @ g.inverse()`` the identity."""
        out = {}
        for name, perm in self.permutations.items():
            back = perm.argsort(-1)
            if self.over.get(name):
                moved = torch.empty_like(back)
                moved[self._sources(name)] = back
                back = moved
            out[name] = back
        plain = Element(out, self.over, actions=self.actions)
        return replace(plain, scales={name: plain._pulled(1 / values, name) for name, values in self.scales.items()})

    def restrict(self, names: Iterable[str]) -> Element:
        """The element that moves only the factors, and scales only the scalings, in ``names``, and leaves the others alone."""
        keep = set(names)
        unknown = keep - set(self.permutations) - set(self.actions)
        if unknown:
            raise WorkbenchError(f"No factor is called {sorted(unknown)[0]!r}", expected=f"some of {', '.join(self.permutations)}")
        return Element(
            {n: p if n in keep else torch.arange(p.shape[-1]).expand(p.shape).clone() for n, p in self.permutations.items()},
            self.over,
            {n: values for n, values in self.scales.items() if n in keep},
            self.actions,
        )

    def units_moved(self) -> dict[str, int]:
        """Factor -> how many of its units are not where they were."""
        return {n: int((p != torch.arange(p.shape[-1])).sum()) for n, p in self.permutations.items()}

    @property
    def is_identity(self) -> bool:
        return not any(self.units_moved().values()) and all(bool((values == 1).all()) for values in self.scales.values())

    def apply_to_tensor(self, tensor: Tensor, layouts: Iterable[Layout], name: str = "") -> Tensor:
        """The moved tensor, a new contiguous one of the same shape, dtype and device. Bit-exact: entries are only moved.

        name: the piece this is, where the element also scales.
        """
        source = tensor.detach().contiguous()
        out = torch.empty_like(source)
        layouts = tuple(layouts)
        for target, block in zip(blocks(out, layouts), blocks(source, layouts), strict=True):
            target.view.copy_(self.apply_to_block(block))
        numbers = [(self.actions[n], values) for n, values in self.scales.items() if not bool((values == 1).all())]
        if numbers:
            out = scaled(out, layouts, name, numbers)
        return out

    def apply_to_block(self, block: Block, *, skip: int | None = None) -> Tensor:
        """Move one block; ``skip`` names one of its axes to leave where it is (matching costs need that)."""
        view, grids, plain = block.view, [], True
        for axis, name in enumerate(block.labels):
            perm = None if name is None or axis == skip else self.permutations.get(name)
            if perm is None:
                grids.append(None)
                continue
            dims = [block.coordinate_of(axis, outer) for outer in self.over.get(name, ())] + [axis]
            plain = plain and len(dims) == 1
            grids.append((perm.to(view.device), dims))
        if plain:
            for axis, grid in enumerate(grids):
                if grid is not None:
                    view = view.index_select(axis, grid[0])
            return view
        # A dependent factor's source differs along other axes: one gather with destination coordinates on every axis.
        index = []
        for axis, grid in enumerate(grids):
            source, dims = (torch.arange(view.shape[axis], device=view.device), [axis]) if grid is None else grid
            shape = [1] * view.dim()
            for position, dim in enumerate(dims):
                shape[dim] = source.shape[position]
            index.append(source.permute(*sorted(range(len(dims)), key=dims.__getitem__)).reshape(shape))
        return view[tuple(index)]
