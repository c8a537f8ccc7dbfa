"""The group in words: who is tied to whom and why, what is pinned and by what, what was proved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.errors import unknown_name
from workbench.symmetry.layout import describe

if TYPE_CHECKING:
    from workbench.symmetry.group import Group, Symmetry


def explain(symmetry: Symmetry, name: str | None = None) -> str:
    """The whole group, or one factor or one tensor by ``name``. Raises WorkbenchError for a name that is neither."""
    if name is None:
        return "\n\n".join(part for part in _whole(symmetry) if part)
    if name in symmetry.groups:
        return _group(symmetry.groups[name])
    if name in symmetry.tensors:
        return _tensor(symmetry, name)
    raise unknown_name("factor or tensor", name, [*symmetry.groups, *symmetry.tensors])


def _whole(symmetry: Symmetry) -> list[str]:
    head = (
        f"{len(symmetry.groups)} factors, 10^{symmetry.log10_order():.1f} permutations; they move {100 * symmetry.coverage:.1f} % "
        f"of the model's numbers."
    )
    pinned = [f"{p.tensor} axis {p.axis}: {p.reason}" for p in symmetry.pinned]
    unknown = [f"{op} ({count}×)" for op, count in symmetry.unknown_ops.items()]
    return [
        head,
        *(_group(group) for group in symmetry.groups.values()),
        _section("Pinned", pinned),
        _section("Operations without a rule (each pins every axis it touches)", unknown),
        _section("Tied tensors, moved once", [f"{a} is {b}" for a, b in symmetry.aliases.items()]),
        _section("Notes", symmetry.notes),
        _proof(symmetry),
    ]


def _section(title: str, lines: list[str] | tuple[str, ...]) -> str:
    return "\n  ".join([f"{title}:", *lines]) if lines else ""


def _group(group: Group) -> str:
    over = f", one copy for each value of {', '.join(group.over)}" if group.over else ""
    members = [
        f"{m.tensor} axis {m.axis}" + (f" (laid out as {describe(m.layout)})" if describe(m.layout) != group.name else "")
        for m in group.members
        if m.axis is not None
    ]
    whole = [m.tensor for m in group.members if m.axis is None]
    members += [f"whole branches change places: {', '.join(whole)}"] if whole else []
    lines = [f"{group.name}: {group.size} units{over}", *members]
    if group.ties:
        shown = group.ties[:6]
        lines.append(f"tied by: {'; '.join(shown)}{f'; and {len(group.ties) - 6} more' if len(group.ties) > 6 else ''}")
    return "\n  ".join(lines)


def _tensor(symmetry: Symmetry, name: str) -> str:
    entry = symmetry.tensors[name]
    lines = [f"{name} {tuple(entry.shape)}: {entry.role}"]
    reasons = {p.axis: p.reason for p in symmetry.pinned if p.tensor == symmetry.aliases.get(name, name)}
    for axis, layout in enumerate(entry.layouts):
        why = f" — {reasons[axis]}" if axis in reasons else ""
        lines.append(f"axis {axis}: {describe(layout)}{why}")
    if name in symmetry.aliases:
        lines.append(f"shares its memory with {symmetry.aliases[name]}")
    return "\n  ".join(lines)


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
    if proof.untested:
        text += f"\n  {proof.untested} tensors were not tested one by one."
    return text
