"""From the finished walk to a ``Symmetry``: the free atoms that parameters carry become factors, with names and layouts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.symmetry.capture import MOVABLE, Capture
from workbench.symmetry.degrees import Power, find_powers, without_contained
from workbench.symmetry.dependence import Dependence, acyclic, join, joint_pairs
from workbench.symmetry.entries import CONSTANT, FIXED, MOVED, UNUSED, PinnedAxis, TensorEntry
from workbench.symmetry.group import Symmetry, build
from workbench.symmetry.interpreter import Interpreter
from workbench.symmetry.layout import Layout, Leaf, Product, Sum, movable
from workbench.symmetry.linear import LinearFactor
from workbench.symmetry.scaling import Scaling
from workbench.symmetry.trees import Atom, Cat, Prod, Tree, atoms, normalise


def assemble(captured: Capture, walk: Interpreter, *, stacks: Collection[str] = (), kinds: Sequence[str] = ()) -> Symmetry:
    """Names for the factors, layouts for the tensors, reasons for the pinned axes.

    stacks: parameters with an axis of branches; kinds: which of "scale" and "sign" to look for.
    """
    dependence = Dependence(walk.parameters, walk.records, walk.pointed)
    joint = joint_pairs(dependence, (axis for kind in walk.parameters.values() for axis in kind.axes))
    merged = {atom for pair in joint for atom in pair}
    of_kind = [find_powers(walk, kind) for kind in kinds]
    powers = [power for found in of_kind for power in found.found]
    within = {**dependence.over, **{power.atom: dependence.of(power.atom) for power in powers}}
    over = acyclic({f: _joined(outer, joint) for f, outer in within.items() if f not in merged})
    parameters = {name: [join(axis, joint) for axis in kind.axes] for name, kind in walk.parameters.items()}
    names = _factor_names(captured, parameters, stacks)
    tensors: dict[str, TensorEntry] = {}
    pinned: list[PinnedAxis] = []
    unused = []
    fixed = [power.atom for power in powers if power.atom.pins]
    coordinates = dict.fromkeys([*(b for outer in over.values() for b in outer if b.pins), *fixed])
    labels = {**names, **{b: f"=fixed{number}" for number, b in enumerate(coordinates)}}
    buffers = dict(captured.module.named_buffers(remove_duplicate=False))
    roles = {name: role for role, name, _ in captured.roles.values()}
    for name, tensor in captured.state.items():
        canonical = captured.aliases.get(name, name)
        axes = parameters.get(canonical)
        shape = tuple(tensor.shape)
        if axes is not None:
            layouts = tuple(layout_of(axis, labels) for axis in axes)
            role = MOVED if any(movable(layout) for layout in layouts) else FIXED
            if name == canonical:
                pinned += _pinned_axes(name, axes)
        else:
            layouts = tuple(Leaf(None, size) for size in shape)
            floating = tensor.is_floating_point() and roles.get(canonical, MOVABLE) == MOVABLE
            role = UNUSED if floating else CONSTANT
            if floating:
                unused.append(name)
        tensors[name] = TensorEntry(shape, layouts, role, name in buffers)
    factors: dict[str, Mapping[str, Any]] = {}
    for atom, name in names.items():
        outer = over.get(atom, ())
        factors[name] = {
            "size": atom.size,
            "over": tuple(labels[b] for b in outer),
            "over_sizes": tuple(b.size for b in outer),
            "ties": tuple(str(reason) for reason in atom.ties),
        }
    notes = []
    if unused:
        notes.append(f"not used by the forward pass, left alone: {', '.join(unused)}")
    scalings = _scalings(powers, labels, over, joint)
    if not factors:
        left = ", though some may be scaled or negated" if scalings else ""
        notes.append(f"no factor was found: every axis of every parameter is pinned{left}, see .pinned for the reasons")
    return replace(
        build(tensors, factors, aliases=captured.aliases),
        pinned=tuple(pinned),
        unknown_ops=dict(walk.unknown),
        notes=tuple(notes),
        outputs=None if captured.wanted is None else tuple(captured.wanted),
        scalings=scalings,
        linear=_linear([power for found in of_kind for power in found.linear], parameters, labels, over, joint),
    )


def _linear(
    powers: Sequence[Power],
    parameters: Mapping[str, Sequence[Tree]],
    labels: Mapping[Atom, str],
    over: Mapping[Atom, Sequence[Atom]],
    joint: Mapping[tuple[Atom, Atom], Atom],
) -> tuple[LinearFactor, ...]:
    """The factors with only linear maps on both sides; a factor that another depends on is left to that one."""
    whole = {atom: both for pair, both in joint.items() for atom in pair}
    found = {whole.get(power.atom, power.atom): power.powers for power in powers}
    outer = {b for atom in found for b in over.get(atom, ())}
    return tuple(
        LinearFactor(
            labels[atom],
            atom.size,
            math.prod(b.size for b in over.get(atom, ())),
            tuple(name for name, axes in parameters.items() if any(atom in atoms(axis) for axis in axes)),
            over=tuple(labels[b] for b in over.get(atom, ())),
            over_sizes=tuple(b.size for b in over.get(atom, ())),
            powers=own,
        )
        for atom, own in found.items()
        if atom.size and atom not in outer
    )


def _scalings(
    powers: Sequence[Power],
    labels: Mapping[Atom, str],
    over: Mapping[Atom, Sequence[Atom]],
    joint: Mapping[tuple[Atom, Atom], Atom],
) -> dict[str, Scaling]:
    """Names and shapes for the powers that were found; those that others contain are left out."""
    whole = {f: both for (_, f), both in joint.items()}
    outer = {b for b, _ in joint}
    found: dict[str, Scaling] = {}
    for power in without_contained([p for p in powers if p.atom not in outer], over):
        atom = whole.get(power.atom, power.atom)
        inside = over.get(atom, ())
        base = f"{power.kind} of {labels[atom]}"
        name, count = base, 2
        while name in found:
            name, count = f"{base}#{count}", count + 1
        found[name] = Scaling(
            name, labels[atom], power.kind, atom.size, tuple(labels[b] for b in inside), tuple(b.size for b in inside), power.powers
        )
    return found


def _joined(outer: Sequence[Atom], joint: Mapping[tuple[Atom, Atom], Atom]) -> list[Atom]:
    """What a factor is over, with every joint pair replaced by its one atom."""
    part_of = {atom: whole for pair, whole in joint.items() for atom in pair}
    return list(dict.fromkeys(part_of.get(atom, atom) for atom in outer))


def _factor_names(captured: Capture, parameters: Mapping[str, list[Tree]], stacks: Collection[str]) -> dict[Atom, str]:
    """A readable name for every free atom: the module that writes it (its tensor's first axis), else one that reads it."""
    names: dict[Atom, str] = {}
    taken: set[str] = set()

    def name_axis(tensor: str, tree: Tree, suffix: str) -> None:
        for atom in atoms(tree):
            if atom.pins or atom in names:
                continue
            module, _, last = tensor.rpartition(".")
            base = (module if module and last == "weight" else tensor) + suffix
            name, count = base, 2
            while name in taken:
                name, count = f"{base}#{count}", count + 1
            taken.add(name)
            names[atom] = name

    ordered = [(name, parameters[name][name in stacks :]) for name in captured.state if name in parameters]
    for tensor, axes in ordered:
        if axes:
            name_axis(tensor, axes[0], "")
    for tensor, axes in ordered:
        for axis in axes[1:]:
            name_axis(tensor, axis, ".in")
    for tensor in stacks:
        name_axis(tensor, parameters[tensor][0], "")
    return names


def layout_of(tree: Tree, labels: Mapping[Atom, str]) -> Layout:
    """The final layout of an axis; neighbouring fixed stretches are merged."""
    tree = normalise(tree)
    if isinstance(tree, Atom):
        return Leaf(labels.get(tree), tree.size)
    if isinstance(tree, Prod | Cat):
        is_sum = isinstance(tree, Cat)
        merged: list[Layout] = []
        for child in tree.parts if is_sum else tree.children:
            item = layout_of(child, labels)
            last = merged[-1] if merged else None
            if isinstance(item, Leaf) and item.factor is None and isinstance(last, Leaf) and last.factor is None:
                merged[-1] = Leaf(None, last.size + item.size if is_sum else last.size * item.size)
            else:
                merged.append(item)
        if len(merged) == 1:
            return merged[0]
        return (Sum if is_sum else Product)(tuple(merged)) if merged else Leaf(None, 1)
    return Leaf(None, tree.size)


def _pinned_axes(name: str, axes: Sequence[Tree]) -> list[PinnedAxis]:
    out = []
    for axis, tree in enumerate(axes):
        reason = next((next(iter(atom.pins)) for atom in atoms(tree) if atom.pins), None)
        if reason is not None:
            out.append(PinnedAxis(name, axis, str(reason)))
    return out
