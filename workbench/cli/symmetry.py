"""Discover the symmetry group of an architecture and prove it by test: a table of its factors, or the reasons of one of them.

MODEL is a built-in architecture, a checkpoint that says what it belongs to, or package.module:factory.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from workbench.cli import console, inputs

if TYPE_CHECKING:
    from workbench.symmetry import Group, Symmetry, SymmetryCheck

HELP = "find and explain the symmetries of an architecture"
EVERYTHING = ""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a built-in architecture, name:key=value,…; a checkpoint (file, folder or shipped); or package.module:factory",
    )
    inputs.add_input(parser)
    inputs.add_task(parser)
    parser.add_argument(
        "--explain",
        metavar="NAME",
        nargs="?",
        const=EVERYTHING,
        help="the chain of reasons of this factor or tensor; without NAME of all, and of every axis that is pinned",
    )
    parser.add_argument("--scales", action="store_true", help="also find the positive scales of units, and say what GL acts on")
    parser.add_argument("--signs", action="store_true", help="also find the signs of units")
    parser.add_argument("--out", metavar="FILE", help="save the group as JSON")
    inputs.add_seed(parser)


def run(arguments: argparse.Namespace) -> int:
    described, checkpoint = inputs.read_subject(arguments.model)
    inputs.require_writable(arguments.out)
    examples = inputs.example_inputs(arguments, described)
    model = described.build().eval()
    from workbench.symmetry import discover_symmetry

    with console.progress() as report:
        found = discover_symmetry(model, examples, scales=arguments.scales, signs=arguments.signs, progress=report)
    proof = found.proof or found.check(model, examples, seed=arguments.seed)
    explanation = found.explain(arguments.explain or None)
    if arguments.out is not None:
        console.note(f"wrote {found.save(arguments.out)}")
    heading = described.describe() if checkpoint is None else f"{arguments.model}\n{described.describe()}"
    words = [heading, explanation] if arguments.explain is not None else [heading, *_summary(found)]
    # The whole explanation ends with the proof; the table, and what is said of one factor or tensor, do not.
    words += [] if arguments.explain == EVERYTHING else [_verdict(proof)]
    data = {
        "model": described.describe(),
        "checkpoint": arguments.model if checkpoint is not None else None,
        "log10_order": found.log10_order(),
        "coverage": found.coverage,
        "proof": {
            "passed": proof.passed,
            "max_relative_error": proof.max_relative_error,
            "samples": proof.samples,
            "shapes": proof.shapes,
            "dead": proof.dead,
            "dead_parts": proof.dead_parts,
            "needed": proof.needed,
            "untested": proof.untested,
            "seed": proof.seed,
        },
        "groups": {name: _group(group) for name, group in found.groups.items()},
        "pinned": [[axis.tensor, axis.axis, axis.reason] for axis in found.pinned],
        "scalings": {name: scaling.to_json() for name, scaling in found.scalings.items()},
        "linear": [factor.to_json() for factor in found.linear],
        "unknown_ops": found.unknown_ops,
        "tied": found.aliases,
        "notes": found.notes,
        "explanation": explanation,
    }
    console.answer(arguments, data, "\n\n".join(words))
    return 0 if proof.passed else 1


def _group(group: Group) -> dict[str, Any]:
    return {
        "size": group.size,
        "kind": group.kind,
        "over": group.over,
        "copies": group.copies,
        "log10_order": group.log10_order,
        "members": [[member.tensor, member.axis] for member in group.members],
        "ties": group.ties,
    }


def _summary(found: Symmetry) -> list[str]:
    """The table of factors, then in a few lines what it leaves out."""
    from workbench.symmetry.layout import coordinate

    rows = [
        [name, group.size, group.copies, f"{group.log10_order:.1f}", ", ".join(map(coordinate, group.over)), _tensors(group)]
        for name, group in found.groups.items()
    ]
    count = f"{len(rows)} factor{'s' * (len(rows) != 1)}"
    total = f"{count}, 10^{found.log10_order():.1f} permutations; they move {100 * found.coverage:.1f} % of the model's numbers"
    lines = [total]
    if found.scalings:
        lines.append(f"scales: {found.scale_dimension} positive numbers, {found.sign_bits} signs; --explain says of what")
    if found.linear:
        words = ", ".join(f"{f.symbol} of {f.tensors[0]}" for f in found.linear)
        lines.append(f"changes of basis (reported, not searched): {words}")
    if found.pinned:
        tensors = len({axis.tensor for axis in found.pinned})
        lines.append(
            f"pinned: {len(found.pinned)} axes of {tensors} tensor{'s' * (tensors != 1)}, wholly or in part; --explain says by what"
        )
    if found.unknown_ops:
        ops = ", ".join(f"{name} ({times}×)" for name, times in found.unknown_ops.items())
        lines.append(f"operations without a rule, which pin every axis they touch: {ops}")
    if found.aliases:
        lines.append(f"tied, moved once: {', '.join(f'{name} is {first}' for name, first in found.aliases.items())}")
    lines += [f"note: {note}" for note in found.notes]
    if not rows:
        return ["\n".join(lines)]
    return [console.table(["factor", "units", "copies", "log10 order", "one copy per", "moves"], rows), "\n".join(lines)]


def _tensors(group: Group, most: int = 2) -> str:
    names = list(dict.fromkeys(member.tensor for member in group.members))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _verdict(proof: SymmetryCheck) -> str:
    words = "proved by test" if proof.passed else "NOT a symmetry: the test failed"
    at = f" over {proof.samples} random elements, input shapes {' and '.join(proof.shapes)}" if proof.shapes else ""
    return f"{words}: largest relative change of the output {proof.max_relative_error:.1e}{at}, limit 1e-9"
