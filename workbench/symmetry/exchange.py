"""The larger group in which whole branches change places: the stacked model is walked, and its factors told of single tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workbench.errors import WorkbenchError
from workbench.symmetry.assembly import assemble
from workbench.symmetry.branches import Branches, find_branches
from workbench.symmetry.capture import Capture
from workbench.symmetry.entries import FIXED, MOVED, PinnedAxis, Stack
from workbench.symmetry.group import Symmetry, build
from workbench.symmetry.interpreter import Interpreter
from workbench.symmetry.layout import movable
from workbench.symmetry.stacked import capture_stacked

# Classes of branches are tried one by one only where all at once gain nothing; each try is an export.
_CLASSES = 12


def with_branches(plain: Symmetry, captured: Capture, example_inputs: Any, kinds: Sequence[str] = ()) -> Symmetry | None:
    """The group that also exchanges whole branches; None where there are none, or nothing is gained."""
    classes = find_branches(captured)
    found = _exchanged(plain, captured, classes, example_inputs, kinds) if classes else None
    if found is None and 1 < len(classes) <= _CLASSES:
        gaining = [one for one in classes if _exchanged(plain, captured, [one], example_inputs, ()) is not None]
        found = _exchanged(plain, captured, gaining, example_inputs, kinds) if gaining else None
    return found


def _exchanged(
    plain: Symmetry, captured: Capture, classes: Sequence[Branches], example_inputs: Any, kinds: Sequence[str]
) -> Symmetry | None:
    """The group found with ``classes`` stacked, told of the single tensors; None where it is no larger than ``plain``."""
    try:
        anew, names = capture_stacked(captured, classes, example_inputs)
    except WorkbenchError:
        return None  # the mapped model cannot be exported: the plain group stands
    walk = Interpreter(anew)
    walk.run()
    found = assemble(anew, walk, stacks=names, kinds=kinds)
    if found.log10_order() <= plain.log10_order() + 1e-9:
        return None
    tensors = {name: found.tensors.get(name, entry) for name, entry in plain.tensors.items()}
    stacks = []
    for stack, inside in names.items():
        layouts = found.tensors[stack].layouts
        stacks.append(Stack(inside, layouts))
        role = MOVED if any(movable(layout) for layout in layouts) else FIXED
        tensors |= {name: replace(plain.tensors[name], layouts=layouts[1:], role=role) for name in inside}
    reasons = {(pin.tensor, pin.axis): pin for pin in plain.pinned}
    of = {name: (stack, 1) for stack, inside in names.items() for name in inside}
    still = {(pin.tensor, pin.axis): pin.reason for pin in found.pinned}
    pinned = []
    for name, entry in tensors.items():
        where, shift = of.get(name, (name, 0))
        for axis in range(len(entry.shape)):
            if (where, axis + shift) in still:
                pinned.append(reasons.get((name, axis), PinnedAxis(name, axis, still[where, axis + shift])))
    factors = {
        n: {"size": g.size, "over": g.over, "over_sizes": g.over_sizes, "ties": g.ties} for n, g in found.groups.items()
    }
    built = build(tensors, factors, aliases=captured.aliases, stacks=tuple(stacks))
    return replace(
        built,
        pinned=tuple(pinned),
        unknown_ops=found.unknown_ops,
        notes=plain.notes,
        outputs=plain.outputs,
        scalings={name: scaling.told_of(names) for name, scaling in found.scalings.items()},
        linear=tuple(factor.told_of(names) for factor in found.linear),
    )
