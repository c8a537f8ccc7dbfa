"""Elements of a symmetry group: one permutation per factor.

Convention, stated once: ``(P w)[i] = w[perm[i]]`` (the "take" form). With it the inverse is ``argsort(perm)``, and ``g @ h``
means *first h, then g*, so that ``apply(g @ h, w) == apply(g, apply(h, w))`` and its index array is ``h.perm[g.perm]``.

A factor may depend on other factors (heads, grouped convolutions: a wreath product). Its array then has one leading axis per
factor it is *over*, indexed by **destination** coordinates: entry (β, j) of the result is read from (π_over[β], perm[β][j]).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from workbench.errors import WorkbenchError
from workbench.symmetry.layout import Block, Layout, blocks


@dataclass(frozen=True, eq=False)
class Element:
    """One member of the group.

    permutations: factor -> int64 array of shape (*sizes of the factors it is over, n), on the CPU; over: factor -> names of
    the factors it is over (left out where there are none).
    """

    permutations: Mapping[str, Tensor]
    over: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, perm in self.permutations.items():
            n = perm.shape[-1]
            if perm.dtype != torch.int64 or not torch.equal(perm.sort(-1).values, torch.arange(n).expand(perm.shape)):
                raise WorkbenchError(
                    f"The array for factor {name!r} is not a permutation of 0…{n - 1}", expected="int64, each index once"
                )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Element)
            and self.permutations.keys() == other.permutations.keys()
            and all(torch.equal(perm, other.permutations[name]) for name, perm in self.permutations.items())
        )

    def __hash__(self) -> int:
        return hash(tuple(sorted((name, tuple(perm.flatten().tolist())) for name, perm in self.permutations.items())))

    def _sources(self, name: str) -> tuple[Tensor, ...]:
        """For every destination coordinate β of the factors ``name`` is over, the source coordinates, one grid per factor.

        A factor it is over may itself depend on others; those are then among the ones ``name`` is over.
        """
        outer = self.over.get(name, ())
        sizes = self.permutations[name].shape[:-1]
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
        return Element(out, self.over)

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
        return Element(out, self.over)

    def restrict(self, names: Iterable[str]) -> Element:
        """The element that moves only the factors in ``names`` and leaves the others alone."""
        keep = set(names)
        unknown = keep - set(self.permutations)
        if unknown:
            raise WorkbenchError(f"No factor is called {sorted(unknown)[0]!r}", expected=f"some of {', '.join(self.permutations)}")
        return Element(
            {n: p if n in keep else torch.arange(p.shape[-1]).expand(p.shape).clone() for n, p in self.permutations.items()},
            self.over,
        )

    def units_moved(self) -> dict[str, int]:
        """Factor -> how many of its units are not where they were."""
        return {n: int((p != torch.arange(p.shape[-1])).sum()) for n, p in self.permutations.items()}

    @property
    def is_identity(self) -> bool:
        return not any(self.units_moved().values())

    def apply_to_tensor(self, tensor: Tensor, layouts: Iterable[Layout]) -> Tensor:
        """The moved tensor, a new contiguous one of the same shape, dtype and device. Bit-exact: entries are only moved."""
        source = tensor.detach().contiguous()
        out = torch.empty_like(source)
        layouts = tuple(layouts)
        for target, block in zip(blocks(out, layouts), blocks(source, layouts), strict=True):
            target.view.copy_(self.apply_to_block(block))
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
