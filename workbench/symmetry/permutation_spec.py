"""``PermutationSpec``: the field's plain special case, parameter name -> permutation name (or None) per axis.

Words and meaning as in Git Re-Basin (Ainsworth et al., arXiv 2209.04836): two axes that share a name move together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.errors import WorkbenchError
from workbench.states import StateDict
from workbench.symmetry.layout import Leaf, Product, describe

if TYPE_CHECKING:
    from workbench.symmetry.group import Symmetry


@dataclass(frozen=True)
class PermutationSpec:
    """axes_to_perm: tensor name -> one permutation name or None per axis."""

    axes_to_perm: Mapping[str, tuple[str | None, ...]]

    @property
    def perm_to_axes(self) -> dict[str, list[tuple[str, int]]]:
        """Permutation name -> the (tensor, axis) pairs it moves."""
        out: dict[str, list[tuple[str, int]]] = {}
        for tensor, names in self.axes_to_perm.items():
            for axis, name in enumerate(names):
                if name is not None:
                    out.setdefault(name, []).append((tensor, axis))
        return out

    def to_symmetry(self, state: StateDict) -> Symmetry:
        """The group this specification claims for tensors shaped like ``state``. Nothing is proved: call ``check`` on the result.

        Raises where a tensor is not named, the number of axes differs, or two axes of one name differ in size.
        """
        from workbench.symmetry.entries import CONSTANT, FIXED, MOVED, TensorEntry
        from workbench.symmetry.group import build

        tensors, sizes = {}, {}
        for name, tensor in state.items():
            if name not in self.axes_to_perm:
                if tensor.is_floating_point():
                    raise WorkbenchError(
                        f"The specification does not name the tensor {name!r}",
                        expected="every float tensor, with None on each axis that stays",
                        next_step=f"add {name!r}: {(None,) * tensor.dim()}",
                    )
                tensors[name] = TensorEntry(tuple(tensor.shape), tuple(Leaf(None, n) for n in tensor.shape), CONSTANT)
                continue
            names = self.axes_to_perm[name]
            if len(names) != tensor.dim():
                raise WorkbenchError(f"{name!r} has {tensor.dim()} axes but the specification names {len(names)}")
            for axis, perm in enumerate(names):
                if perm is not None and sizes.setdefault(perm, tensor.shape[axis]) != tensor.shape[axis]:
                    raise WorkbenchError(
                        f"Permutation {perm!r} has size {sizes[perm]} but axis {axis} of {name!r} has {tensor.shape[axis]}"
                    )
            leaves = tuple(Leaf(perm, n) for perm, n in zip(names, tensor.shape, strict=True))
            tensors[name] = TensorEntry(tuple(tensor.shape), leaves, MOVED if any(names) else FIXED)
        return build(tensors, {perm: {"size": size} for perm, size in sizes.items()})

    @classmethod
    def from_symmetry(cls, symmetry: Symmetry) -> PermutationSpec:
        """Raises where a plain specification cannot say it: an axis that is not one whole factor (a flattened convolution, heads),
        or a factor with a copy of its own for every value of another (what is inside heads, experts, channel groups)."""
        for name, group in symmetry.groups.items():
            if group.over:
                raise WorkbenchError(
                    f"The factor {name!r} has a permutation of its own for each of the {group.copies} values of "
                    f"{' × '.join(group.over)}, which axes_to_perm cannot express",
                    expected="one permutation for the whole of every axis",
                    cause="heads, experts and channel groups are permuted as wholes and inside, each in its own way",
                    next_step="use the Symmetry itself (align takes it), or keep it as JSON with Symmetry.save",
                )
        if symmetry.stacks:
            raise WorkbenchError(
                f"Whole branches may be exchanged ({', '.join(symmetry.stacks[0].names)}), which axes_to_perm cannot express",
                expected="factors that move the axes of single tensors",
                next_step="use the Symmetry itself (align takes it), or keep it as JSON with Symmetry.save",
            )
        axes: dict[str, tuple[str | None, ...]] = {}
        for name, entry in symmetry.tensors.items():
            for axis, layout in enumerate(entry.layouts):
                if not isinstance(layout, Leaf) or any(entry.orders):
                    kind = "product" if isinstance(layout, Product) else "sum"
                    raise WorkbenchError(
                        f"Axis {axis} of {name!r} is a {kind} of factors ({describe(layout)}), which axes_to_perm cannot express",
                        expected="one permutation for the whole of every axis",
                        next_step="use the Symmetry itself (align takes it), or keep it as JSON with Symmetry.save",
                    )
            axes[name] = tuple(layout.factor for layout in entry.layouts)  # type: ignore[union-attr]
        return cls(axes)
