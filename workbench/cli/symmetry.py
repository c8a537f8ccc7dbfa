"""Discover the symmetry group of an architecture, prove it by test, and say in words who is tied to whom and why."""

from __future__ import annotations

import argparse

from workbench.cli import console, inputs

HELP = "find and explain the symmetries of an architecture"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a built-in architecture, name:key=value,…, or package.module:factory")
    parser.add_argument(
        "--input",
        metavar="SHAPE",
        action="append",
        help="shape of an example input with its batch axis, 2x3x32x32 or 2x16+int for integers; once per input, in order",
    )
    inputs.add_task(parser)
    parser.add_argument("--explain", metavar="NAME", help="only this group or tensor")
    parser.add_argument("--out", metavar="FILE", help="save the group as JSON")
    inputs.add_seed(parser)


def run(arguments: argparse.Namespace) -> int:
    described = inputs.read_architecture(arguments.model)
    inputs.require_writable(arguments.out)
    examples = inputs.example_inputs(arguments, described)
    model = described.build().eval()
    from workbench.symmetry import discover_symmetry

    with console.progress() as report:
        found = discover_symmetry(model, examples, progress=report)
    proof = found.proof or found.check(model, examples, seed=arguments.seed)
    if arguments.out is not None:
        console.note(f"wrote {found.save(arguments.out)}")
    # The whole explanation ends with the proof; that of one group or tensor does not.
    words = [described.describe(), found.explain(arguments.explain), *([_verdict(proof)] if arguments.explain else [])]
    data = {
        "model": described.describe(),
        "log10_order": found.log10_order(),
        "coverage": found.coverage,
        "proof": {"passed": proof.passed, "max_relative_error": proof.max_relative_error},
        "groups": {
            name: {
                "size": group.size,
                "kind": group.kind,
                "over": group.over,
                "copies": group.copies,
                "members": [[member.tensor, member.axis] for member in group.members],
                "ties": group.ties,
            }
            for name, group in found.groups.items()
        },
        "pinned": [[axis.tensor, axis.axis, axis.reason] for axis in found.pinned],
        "unknown_ops": found.unknown_ops,
        "notes": found.notes,
        "explanation": words[1],
    }
    console.answer(arguments, data, "\n\n".join(words))
    return 0 if proof.passed else 1


def _verdict(proof) -> str:
    words = "proved by test" if proof.passed else "NOT a symmetry: the test failed"
    return f"{words}: largest relative change of the output {proof.max_relative_error:.1e}"
