"""The *Symmetries* page in words and tables: the headline, the factors, what is pinned, and what a change did to the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workbench.plots.style import factor_colour

from . import markup

MOST_ROWS = 200
# How a tensor takes a number s, or a matrix A, by its power; other powers of s are written out.
SCALED = {1: "× s", -1: "÷ s"}
TURNED = {1: "by A", -1: "by A⁻ᵀ"}


def facts(found: Any) -> str:
    """The group in numbers, each with what it is."""
    if found is None:
        return ""
    symmetry, about = found.symmetry, found.subject
    groups = symmetry.groups
    order = markup.power_of_ten(symmetry.log10_order())
    tensors = {axis.tensor for axis in found.axes if not axis.factors or axis.reason}
    pinned = f"in {len(tensors)} tensor{'s' * (len(tensors) != 1)}, with reasons below"
    nested = sum(bool(group.over) for group in groups.values())
    items = [
        (
            "Order of the group",
            order,
            f"log₁₀ = {symmetry.log10_order():.1f}; {len(groups)} factors"
            + (f", {nested} of them in a copy for each unit of another" if nested else "")
            + ("; permutations only" if symmetry.scalings or symmetry.linear else ""),
        ),
        ("Coverage", f"{100 * symmetry.coverage:.1f} %", "of the model's numbers are moved by some factor"),
        _proof(symmetry.proof, bool(groups or symmetry.scalings or symmetry.linear)),
        ("Pinned axes", str(len(symmetry.pinned)), pinned if symmetry.pinned else "none"),
        _unknown(symmetry.unknown_ops),
        *_continuous(found),
    ]
    lines = [f"{about.description} · {about.weights}", *about.notes, *(f"note: {note}" for note in symmetry.notes)]
    return markup.facts(items, headline=_headline(symmetry, order), about="\n".join(lines))


def _headline(symmetry: Any, order: str) -> str:
    """How many ways there are to write the function down: finitely many only while no positive number may be chosen."""
    counts = [(symmetry.scale_dimension, "positive numbers"), (symmetry.sign_bits, "signs")]
    counts.append((sum(factor.copies for factor in symmetry.linear), "changes of basis"))
    chosen = _listed(f"{count:,} {what}" for count, what in counts if count)
    if not symmetry.groups:
        only = f", but {chosen} may be chosen" if chosen else ""
        return f"No permutation of the parameters keeps the function{only}; the reasons are below."
    if not chosen:
        return f"The same function can be written down in {order} ways: one for every order of the units below."
    ways = "in infinitely many ways" if symmetry.scale_dimension or symmetry.linear else "in more ways than one"
    return f"The same function can be written down in {order} orders of the units below, each {ways}: {chosen} may be chosen too."


def _listed(parts: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = list(parts) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _proof(proof: Any, anything: bool) -> tuple[str, str, str]:
    if proof is None:
        return ("Proved by test", "no", "not tested")
    if not anything:
        return ("Proved by test", "—", "nothing is claimed, so there is nothing to prove")
    note = f"{proof.samples} random elements in float64, input shapes {' and '.join(proof.shapes)}: outputs change by ≤ "
    note += f"{proof.max_relative_error:.0e} of the largest, limit 1e-9"
    if proof.dead:
        note += f"; {len(proof.dead)} tensor{'s' * (len(proof.dead) != 1)} whose own move changes nothing"
    if proof.untested:
        note += f"; {proof.untested} not left out one by one"
    return ("Proved by test", "yes" if proof.passed else "NO", note)


def _unknown(unknown: Any) -> tuple[str, str, str]:
    if not unknown:
        return ("Operations without a rule", "none", "every operation of the graph is understood")
    names = ", ".join(f"{name} ({count}×)" for name, count in unknown.items())
    return ("Operations without a rule", str(sum(unknown.values())), f"{names}: each pins every axis it touches")


def _continuous(found: Any) -> list[tuple[str, str, str]]:
    """What may be chosen beside the order of units, where it was asked for."""
    symmetry = found.symmetry
    if not symmetry.scalings and not symmetry.linear:
        return []
    items = [
        ("Scales and signs", f"{symmetry.scale_dimension} + {symmetry.sign_bits}", "positive numbers + signs that may be chosen")
    ]
    if found.excess is not None:
        note = "sum of squares, over the least that positive scales reach; 1 is balanced"
        items.append(("Mass / least mass", f"{found.excess:.4g}", note))
    if symmetry.linear:
        numbers = sum(factor.dimension for factor in symmetry.linear)
        matrices = sum(factor.copies for factor in symmetry.linear)
        note = f"matrices with {numbers} numbers, scales among them; reported and proved, not searched"
        items.append(("Changes of basis", str(matrices), note))
    return items


def scalings(found: Any) -> str:
    """One row for every scale, sign and change of basis: how many there are, and how tensors take them."""
    if found is None or not (found.symmetry.scalings or found.symmetry.linear):
        return ""
    rows = [
        [name.replace(scaling.factor, _plain(scaling.factor)), " × ".join(map(str, scaling.shape)), _powers(scaling.powers, SCALED)]
        for name, scaling in found.symmetry.scalings.items()
    ]
    for factor in found.symmetry.linear:
        what = f"basis of {_plain(factor.factor)}" if factor.kind == "general" else "rotation and scale of pairs of units"
        rows.append([what, factor.symbol, _powers(factor.powers, TURNED)])
    left = len(rows) - MOST_ROWS
    note = f"and {left} more" if left > 0 else ""
    return markup.table(["may be chosen", "how many", "acts on"], rows[:MOST_ROWS], note=note, words=True)


def _powers(powers: Any, told: Mapping[int, str]) -> str:
    """``× s: 0.weight, 0.bias; ÷ s: 2.weight``: the tensors by their power."""
    by_power: dict[int, dict[str, None]] = {}
    for (tensor, _, _), power in powers.items():
        by_power.setdefault(power, {})[tensor] = None
    return "; ".join(f"{told.get(power) or _raised(power)}: {', '.join(tensors)}" for power, tensors in by_power.items())


def _raised(power: int) -> str:
    return f"{'×' if power > 0 else '÷'} {markup.raised('s', abs(power))}"


def factors(found: Any) -> str:
    """One row per factor."""
    if found is None or not found.symmetry.groups:
        return ""
    groups = found.symmetry.groups
    head = ["factor", "units", "copies", "log₁₀ order", "tensors", "one copy for each value of"]
    rows = [
        [
            name,
            str(group.size),
            str(group.copies),
            f"{group.log10_order:.1f}",
            str(len({member.tensor for member in group.members})),
            ", ".join(_plain(outer) for outer in group.over),
        ]
        for name, group in list(groups.items())[:MOST_ROWS]
    ]
    colours = [factor_colour(index) for index in range(len(rows))]
    left = len(groups) - len(rows)
    return markup.table(head, rows, colours=colours, note=f"and {left} more" if left else "")


def pinned(found: Any) -> str:
    """Every axis that stays, with its reason."""
    if found is None:
        return ""
    rows = [(f"{axis.tensor} axis {axis.axis}", axis.layout, axis.reason) for axis in found.axes if axis.reason]
    note = f"and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
    return markup.table(["stays", "laid out as", "because"], rows[:MOST_ROWS], note=note, words=True)


def explanation(text: str) -> str:
    return markup.lines(text) if text else ""


def change(found: Any, changed: Any) -> str:
    """What was done, and what became of the outputs."""
    if found is None or changed is None:
        return ""
    # An element of the group and a broken one are told apart by what was done, never by the outcome.
    attributes = changed.outputs["outputs"].attrs
    examples = changed.outputs.sizes["example"]
    difference = f"{attributes['max_abs_change']:.2g}"
    same = bool(attributes["same"])
    if changed.alone:
        factor = next(name for name, count in changed.moved.items() if count)
        done = f"Seed {changed.seed}: {changed.moved[factor]} units of {factor} moved in {changed.alone}, and in nothing tied to it"
        verdict = "The outputs are the same: the entries of this tensor are alike." if same else "The function is broken"
    else:
        total = sum(group.size * group.copies for group in found.symmetry.groups.values())
        moved = f"{sum(changed.moved.values())} of {total} units moved, in every tensor they touch" if total else "no units to move"
        done = f"Element of seed {changed.seed}: {moved}"
        drawn = [(changed.scales, "scales"), (changed.signs, "signs"), (changed.bases, "changes of basis")]
        if any(count for count, _ in drawn):
            done += f"; drawn too: {', '.join(f'{count} {what}' for count, what in drawn if count)}"
        verdict = "The function is the same" if same else "The outputs CHANGED"
    note = f"{done}. {examples} {found.subject.about_inputs}, float64; largest output {attributes['scale']:.3g}."
    return markup.facts([(verdict, difference, "largest difference of the outputs")], about=note)


def _plain(name: str) -> str:
    """A fixed coordinate has no name of its own."""
    return "a fixed axis" if name.startswith("=") else name
