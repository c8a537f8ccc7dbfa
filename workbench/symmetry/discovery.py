"""From the finished walk to a ``Symmetry``: factors are the free atoms that some used parameter carries."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from workbench.errors import WorkbenchError
from workbench.progress import Progress
from workbench.symmetry import proof
from workbench.symmetry.branches import Branches, find_branches
from workbench.symmetry.capture import MOVABLE, Capture, capture
from workbench.symmetry.degrees import Power, find_powers, without_contained
from workbench.symmetry.dependence import Dependence, acyclic, join, joint_pairs
from workbench.symmetry.group import CONSTANT, FIXED, MOVED, UNUSED, LinearFactor, PinnedAxis, Stack, Symmetry, TensorEntry, build
from workbench.symmetry.interpreter import Interpreter
from workbench.symmetry.layout import Layout, Leaf, Product, Sum, movable, strip_factor
from workbench.symmetry.scaling import SCALE, SIGN, Scaling
from workbench.symmetry.siblings import merge_siblings, sibling_factors
from workbench.symmetry.stacked import capture_stacked
from workbench.symmetry.trees import Atom, Cat, Prod, Tree, atoms, normalise


def discover_symmetry(
    model: nn.Module,
    example_inputs: Any,
    *,
    outputs: Sequence[str] | None = None,
    scales: bool = False,
    signs: bool = False,
    progress: Progress | None = None,
) -> Symmetry:
    """The group of parameter permutations that leave ``model``'s eval-mode function alone, read off its computation graph.

    The model is exported to core ATen; every tensor axis is typed as a sum of products of loops; each operation unifies the
    loops that run together and pins those whose order it depends on; what stays free is a factor of the group. The result is
    proved by a numeric test before it is returned (``.proof``): a factor that fails is dropped and reported in ``.notes``.

    model: any module torch.export can capture; not changed in any way. example_inputs: a tuple of positional inputs, or a dict
    of keyword inputs; a batch of 2 or more. outputs: names of the outputs that matter (each one kept pins its axes); default
    all. scales, signs: also find the positive scales and the signs of units (``.scalings``): of ReLU units, BatchNorm, gated
    layers, norm gains, heads. progress: called once per graph node, then once per run of the proof.

    Raises WorkbenchError where the model fails on the inputs or cannot be exported.
    """
    kinds = (*([SCALE] if scales else []), *([SIGN] if signs else []))
    captured = capture(model, example_inputs, outputs=outputs)
    walk = Interpreter(captured, progress)
    walk.run()
    symmetry = assemble(captured, walk, kinds=kinds)
    larger = with_branches(symmetry, captured, example_inputs, kinds)
    if larger is not None:
        proved = prove(larger, captured, model, example_inputs, progress)
        if proved.log10_order() > symmetry.log10_order():
            return proved
        symmetry = replace(symmetry, notes=(*symmetry.notes, *(n for n in proved.notes if n.startswith("defect"))))
    proved = prove(symmetry, captured, model, example_inputs, progress)
    # A factor of two stretches has no scalings of its own yet: those of the stretches are worth more to who asks for them.
    siblings = sibling_factors(proved) if proved.proof is not None and not proved.scalings else []
    if siblings:
        larger = prove(merge_siblings(proved, siblings), captured, model, example_inputs, progress)
        if larger.log10_order() > proved.log10_order():
            return replace(larger, notes=proved.notes)
    return proved


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
        linear=tuple(
            replace(factor, tensors=tuple(n for t in factor.tensors for n in names.get(t, (t,)))) for factor in found.linear
        ),
    )


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
            layouts = tuple(_layout(axis, labels) for axis in axes)
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
    if not factors:
        notes.append("no factor was found: every axis of every parameter is pinned, see .pinned for the reasons")
    return replace(
        build(tensors, factors, aliases=captured.aliases),
        pinned=tuple(pinned),
        unknown_ops=dict(walk.unknown),
        notes=tuple(notes),
        outputs=None if captured.wanted is None else tuple(captured.wanted),
        scalings=_scalings(powers, labels, over, joint),
        linear=_linear([atom for found in of_kind for atom in found.linear], parameters, labels, over, joint),
    )


def _linear(
    atoms_found: Sequence[Atom],
    parameters: Mapping[str, Sequence[Tree]],
    labels: Mapping[Atom, str],
    over: Mapping[Atom, Sequence[Atom]],
    joint: Mapping[tuple[Atom, Atom], Atom],
) -> tuple[LinearFactor, ...]:
    """The factors with only linear maps on both sides; a factor that another depends on is left to that one."""
    whole = {atom: both for pair, both in joint.items() for atom in pair}
    found = dict.fromkeys(whole.get(atom, atom) for atom in atoms_found)
    outer = {b for atom in found for b in over.get(atom, ())}
    return tuple(
        LinearFactor(
            labels[atom],
            atom.size,
            math.prod(b.size for b in over.get(atom, ())),
            tuple(name for name, axes in parameters.items() if any(atom in atoms(axis) for axis in axes)),
        )
        for atom in found
        if atom not in outer
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


def _layout(tree: Tree, labels: Mapping[Atom, str]) -> Layout:
    """The final layout of an axis; neighbouring fixed stretches are merged."""
    tree = normalise(tree)
    if isinstance(tree, Atom):
        return Leaf(labels.get(tree), tree.size)
    if isinstance(tree, Prod | Cat):
        is_sum = isinstance(tree, Cat)
        merged: list[Layout] = []
        for child in tree.parts if is_sum else tree.children:
            item = _layout(child, labels)
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


def prove(
    symmetry: Symmetry, captured: Capture, model: nn.Module, example_inputs: Any, progress: Progress | None = None
) -> Symmetry:
    """Attach the verdict of the numeric test. Factors that fail it are dropped (their axes pinned) and reported as defects."""
    if any(isinstance(t, Tensor) and t.is_meta for t in captured.state.values()):
        return replace(symmetry, notes=(*symmetry.notes, "not proved by test: the model has no values (meta device)"))
    verdict = proof.check_captured(symmetry, captured, example_inputs, progress=progress)
    if verdict.passed:
        return replace(symmetry, proof=verdict)
    wrong = [name for name, error in verdict.per_group.items() if not error <= proof.TOLERANCE]
    kept = without(symmetry, wrong or [*symmetry.groups, *symmetry.scalings])
    note = (
        f"defect: the factors {', '.join(wrong) or 'found'} changed the function by up to "
        f"{verdict.max_relative_error:.1e} in the proof by test and were dropped"
    )
    second = proof.check_captured(kept, captured, example_inputs, progress=progress)
    return replace(kept, proof=second, notes=(*symmetry.notes, note))


def without(symmetry: Symmetry, names: Sequence[str]) -> Symmetry:
    """The smaller group in which the factors ``names`` (and those over them) do not move."""
    gone = set(names)
    while True:
        more = {n for n, g in symmetry.groups.items() if n not in gone and gone & set(g.over)}
        if not more:
            break
        gone |= more

    tensors = {}
    pinned = list(symmetry.pinned)
    for name, entry in symmetry.tensors.items():
        layouts = tuple(strip_factor(layout, gone) for layout in entry.layouts)
        for axis, (old, new) in enumerate(zip(entry.layouts, layouts, strict=True)):
            if old != new:
                pinned.append(PinnedAxis(name, axis, "its factor failed the proof by test"))
        role = entry.role if entry.role != MOVED or any(movable(layout) for layout in layouts) else FIXED
        tensors[name] = TensorEntry(entry.shape, layouts, role, entry.buffer)
    factors = {
        n: {"size": g.size, "kind": g.kind, "over": g.over, "over_sizes": g.over_sizes, "ties": g.ties}
        for n, g in symmetry.groups.items()
        if n not in gone
    }
    stacks = tuple(Stack(s.names, tuple(strip_factor(layout, gone) for layout in s.layouts)) for s in symmetry.stacks)
    if any(movable(stack.layouts[0]) for stack in symmetry.stacks) and not any(movable(s.layouts[0]) for s in stacks):
        stacks = ()  # no branch may be exchanged any more
    built = build(tensors, factors, aliases=symmetry.aliases, stacks=stacks)
    scalings = {n: s for n, s in symmetry.scalings.items() if n not in gone and not gone & {s.factor, *s.over}}
    return replace(
        built,
        pinned=tuple(pinned),
        unknown_ops=symmetry.unknown_ops,
        notes=symmetry.notes,
        outputs=symmetry.outputs,
        scalings=scalings,
        linear=tuple(factor for factor in symmetry.linear if factor.factor not in gone),
    )
