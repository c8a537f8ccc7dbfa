"""What a change of the weights does to the outputs: an element of the group must leave them alone, a part of one must not.

The wrong change is the negative control of everything that is shown: ``move_alone`` permutes a single tensor and leaves behind
those that are tied to it.
"""

from __future__ import annotations

from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn

from workbench.errors import unknown_name
from workbench.states import StateDict, clone
from workbench.symmetry.element import Element
from workbench.symmetry.group import Symmetry
from workbench.twins import outputs_of

# Summation order changes with the order of the units: about 1e-15 of the largest output in float64, and 1e-6 where a model casts
# to float32 inside. A wrong permutation changes a good part of it.
SAME = 1e-5


def move_alone(symmetry: Symmetry, element: Element, state: StateDict, tensor: str) -> dict[str, Tensor]:
    """``state`` with ``element`` applied to one tensor (under all its tied names) and to nothing else: no symmetry any more.

    Returns a new state dict. Raises ``WorkbenchError`` for an unknown tensor and for a state that does not fit.
    """
    if tensor not in symmetry.tensors:
        raise unknown_name("tensor", tensor, symmetry.tensors)
    first = symmetry.aliases.get(tensor, tensor)
    moved = symmetry.apply(element, state)
    tied = {first, *(name for name, other in symmetry.aliases.items() if other == first)}
    return {name: moved[name] if name in tied else value for name, value in clone(state).items()}


def one_mover(symmetry: Symmetry, factor: str, seed: int) -> Element:
    """A random element that moves ``factor`` alone, and every unit of it: σ c σ⁻¹, with σ drawn by ``seed`` and c: i ↦ i + 1."""
    if factor not in symmetry.groups:
        raise unknown_name("factor", factor, symmetry.groups)
    drawn = symmetry.sample(seed).permutations[factor]
    return symmetry.element({factor: torch.empty_like(drawn).scatter_(-1, drawn, drawn.roll(1, -1))})


def compare_outputs(model: nn.Module, before: StateDict, after: StateDict, inputs: Any) -> xr.Dataset:
    """f(before, x) beside f(after, x) in float64, on a copy of ``model`` in eval mode.

    inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments, N examples along axis 0. Outputs of any
    shape are laid out as one row per example, several one after another; where they do not agree on N, all in a single row.

    Returns ``outputs(weights, example, output)`` with weights "before" and "after". Its attributes: max_abs_change, the largest
    |f(before, x) − f(after, x)|; scale, the largest |f(before, x)|; tolerance, relative; same, whether the change is within it.
    """
    pair = [_rows(leaves) for leaves in outputs_of(model, (before, after), inputs)]
    change, scale = float((pair[0] - pair[1]).abs().max()), float(pair[0].abs().max())
    attributes = {
        "units": "1",
        "definition": "float outputs of the model in eval mode, in float64",
        "max_abs_change": change,
        "scale": scale,
        "tolerance": SAME,
        "same": int(change <= SAME * max(scale, 1e-30)),
    }
    values = torch.stack(pair).cpu().numpy()
    return xr.Dataset({"outputs": (("weights", "example", "output"), values, attributes)}, coords={"weights": ["before", "after"]})


def _rows(leaves: list[Tensor]) -> Tensor:
    counts = {leaf.shape[0] if leaf.dim() else 0 for leaf in leaves}
    count = counts.pop() if len(counts) == 1 else 0
    return torch.cat([leaf.reshape(count or 1, -1) for leaf in leaves], dim=1)
