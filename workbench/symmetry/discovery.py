"""Discovery: capture, walk, assemble, exchange branches, join siblings; and nothing is returned that the proof rejects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from workbench.progress import Progress
from workbench.symmetry import proof
from workbench.symmetry.assembly import assemble
from workbench.symmetry.capture import Capture, capture
from workbench.symmetry.entries import FIXED, MOVED, PinnedAxis, Stack, TensorEntry
from workbench.symmetry.exchange import with_branches
from workbench.symmetry.group import Symmetry, build
from workbench.symmetry.interpreter import Interpreter
from workbench.symmetry.layout import movable, strip_factor
from workbench.symmetry.linear import LinearFactor, rotation_candidates
from workbench.symmetry.scaling import SCALE, SIGN
from workbench.symmetry.siblings import merge_siblings, sibling_factors


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


def prove(
    symmetry: Symmetry, captured: Capture, model: nn.Module, example_inputs: Any, progress: Progress | None = None
) -> Symmetry:
    """Attach the verdict of the numeric test. Factors that fail it are dropped (their axes pinned) and reported as defects."""
    if any(isinstance(t, Tensor) and t.is_meta for t in (*captured.state.values(), *pytree.tree_leaves(example_inputs))):
        return replace(symmetry, notes=(*symmetry.notes, "not proved by test: the model has no values (meta device)"))
    symmetry = replace(symmetry, linear=(*symmetry.linear, *_rotations(symmetry, captured, example_inputs)))
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


def _rotations(symmetry: Symmetry, captured: Capture, example_inputs: Any) -> tuple[LinearFactor, ...]:
    """The rotations that keep the function, for every head where they do so, else one for all heads. What only may be a symmetry
    is no defect where it is none."""
    known = {factor.name for factor in symmetry.linear}
    candidates = [factor for factor in rotation_candidates(symmetry) if factor.name not in known]
    if not candidates:
        return ()
    kept = proof.keeping(symmetry, captured, example_inputs, candidates)
    fewer = [factor.shared() for factor in candidates if factor not in kept and factor.over]
    return (*kept, *(proof.keeping(symmetry, captured, example_inputs, fewer) if fewer else ()))


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
    gone |= {s.factor for n, s in symmetry.scalings.items() if n not in scalings}  # no matrix acts where not even scales do
    return replace(
        built,
        pinned=tuple(pinned),
        unknown_ops=symmetry.unknown_ops,
        notes=symmetry.notes,
        outputs=symmetry.outputs,
        scalings=scalings,
        linear=tuple(factor for factor in symmetry.linear if not gone & {factor.name, factor.factor, *factor.over}),
    )
