"""The group in words: who is tied to whom and why, what is pinned and by what, what was proved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import unknown_name
from workbench.symmetry.layout import coordinate, describe, factors
from workbench.symmetry.linear import GENERAL

if TYPE_CHECKING:
    from workbench.symmetry.entries import Group
    from workbench.symmetry.group import Symmetry
    from workbench.symmetry.scaling import Scaling


def explain(symmetry: Symmetry, name: str | None = None) -> str:
    """The whole group, or one factor or one tensor by ``name``. Raises WorkbenchError for a name that is neither."""
    if name is None:
        return "\n\n".join(part for part in _whole(symmetry) if part)
    if name in symmetry.groups:
        return _group(symmetry.groups[name], shown=None)
    if name in symmetry.tensors:
        return _tensor(symmetry, name)
    raise unknown_name("factor or tensor", name, [*symmetry.groups, *symmetry.tensors])


def _whole(symmetry: Symmetry) -> list[str]:
    count = f"{len(symmetry.groups)} factor{'s' * (len(symmetry.groups) != 1)}"
    head = (
        f"{count}, 10^{symmetry.log10_order():.1f} permutations; they move {100 * symmetry.coverage:.1f} % of the model's numbers."
    )
    pinned = [f"{p.tensor} axis {p.axis}: {p.reason}" for p in symmetry.pinned]
    unknown = [f"{op} ({count}×)" for op, count in symmetry.unknown_ops.items()]
    return [
        head,
        *(_group(group) for group in symmetry.groups.values()),
        _section("Scales and signs, one number for each unit", [_scaling(scaling) for scaling in symmetry.scalings.values()]),
        _section("Changes of basis (reported, not searched)", _linear(symmetry)),
        _section("Pinned", pinned),
        _section("Operations without a rule (each pins every axis it touches)", unknown),
        _section("Tied tensors, moved once", [f"{a} is {b}" for a, b in symmetry.aliases.items()]),
        _section("Notes", symmetry.notes),
        _proof(symmetry),
    ]


def _section(title: str, lines: list[str] | tuple[str, ...]) -> str:
    return "\n  ".join([f"{title}:", *lines]) if lines else ""


def _group(group: Group, *, shown: int | None = 6) -> str:
    """Members, then the chain of operations that tied them: the first ``shown`` on one line, or all (None), each on its own."""
    over = f", one copy for each value of {', '.join(map(coordinate, group.over))}" if group.over else ""
    members = [
        f"{m.tensor} axis {m.axis}" + (f" (laid out as {describe(m.layout)})" if describe(m.layout) != group.name else "")
        for m in group.members
        if m.axis is not None
    ]
    whole = [m.tensor for m in group.members if m.axis is None]
    members += [f"whole branches change places: {', '.join(whole)}"] if whole else []
    lines = [f"{group.name}: {group.size} units{over}", *members]
    if group.ties and shown is None:
        lines += ["tied by:", *(f"  {tie}" for tie in group.ties)]
    elif group.ties:
        left = len(group.ties) - shown
        lines.append(f"tied by: {'; '.join(group.ties[:shown])}{f'; and {left} more' if left > 0 else ''}")
    return "\n  ".join(lines)


def _scaling(scaling: Scaling) -> str:
    numbers = " × ".join(map(str, scaling.shape))
    powers: dict[int, list[str]] = {}
    for (tensor, axis, _), power in scaling.powers.items():
        powers.setdefault(power, []).append(f"{tensor} axis {axis}")
    told = "; ".join(f"{'s' if power == 1 else f's^{power}'} on {', '.join(leaves)}" for power, leaves in powers.items())
    return f"{scaling.name} ({numbers}): {told}"


def _linear(symmetry: Symmetry) -> list[str]:
    lines = []
    for f in symmetry.linear:
        copies = f" for each of {f.copies} {'copies' if f.kind == GENERAL else 'pairs of units'}" if f.copies > 1 else ""
        kind = f"all invertible {f.size} × {f.size} matrices" if f.kind == GENERAL else "a rotation and a scale"
        lines.append(f"{coordinate(f.factor)}: {kind}{copies}, on {', '.join(f.tensors)}")
    return lines


def _tensor(symmetry: Symmetry, name: str) -> str:
    entry = symmetry.tensors[name]
    lines = [f"{name} {tuple(entry.shape)}: {entry.role}"]
    reasons = {p.axis: p.reason for p in symmetry.pinned if p.tensor == symmetry.aliases.get(name, name)}
    for axis, layout in enumerate(entry.layouts):
        moving = [factor for factor in dict.fromkeys(factors(layout)) if factor in symmetry.groups]
        why = f" — {reasons[axis]}" if axis in reasons else ""
        lines.append(f"axis {axis}: {describe(layout)}{why}")
        lines += [f"  {factor} moves with {_others(symmetry, factor, name)}" for factor in moving]
    for stack in symmetry.stacks:
        if name in stack.names:
            others = [other for other in stack.names if other != name]
            lines.append(f"as a whole: {describe(stack.layouts[0])}, changes places with {', '.join(others)}")
    if name in symmetry.aliases:
        lines.append(f"shares its memory with {symmetry.aliases[name]}")
    return "\n  ".join(lines)


def _others(symmetry: Symmetry, factor: str, name: str) -> str:
    """What else a factor moves, in a line."""
    own = symmetry.aliases.get(name, name)
    members = [member for member in symmetry.groups[factor].members if member.tensor != own]
    others = [m.tensor if m.axis is None else f"{m.tensor} axis {m.axis}" for m in members]
    return f"{', '.join(others[:5])}{f' and {len(others) - 5} more' if len(others) > 5 else ''}" if others else "nothing else"


def _proof(symmetry: Symmetry) -> str:
    proof = symmetry.proof
    if proof is None:
        return "Not proved by test."
    verdict = "kept" if proof.passed else "CHANGED"
    text = (
        f"Proof by test: {proof.samples} random elements at input shapes {' and '.join(proof.shapes)} {verdict} the function "
        f"(largest relative change {proof.max_relative_error:.1e}, limit 1e-9)."
    )
    if proof.dead:
        text += "\n  Tensors whose own move changes nothing: " + ", ".join(f"{tensor} ({group})" for group, tensor in proof.dead)
    if proof.dead_parts:
        parts = (f"{tensor} axis {axis}, {start}…{stop - 1} ({group})" for group, tensor, axis, start, stop in proof.dead_parts)
        text += "\n  Parts whose own move changes nothing: " + ", ".join(parts)
    if proof.untested:
        text += f"\n  {proof.untested} places of a factor in a tensor were not left behind one by one."
    return text
