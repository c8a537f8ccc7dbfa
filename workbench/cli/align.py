"""Bring B close to A by a member of the architecture's symmetry group, and prove that B's function was kept."""

from __future__ import annotations

import argparse
from typing import Any

from workbench.cli import console, inputs, matching

HELP = "align checkpoint B to checkpoint A"
CHECKED = 256  # examples on which the outputs of B and of aligned B are compared


def configure(parser: argparse.ArgumentParser) -> None:
    inputs.add_pair(parser)
    matching.add_matching(parser)
    inputs.add_input(parser)
    parser.add_argument("--out", metavar="FILE", help="write the aligned checkpoint here (.safetensors)")


def _checked(pair: inputs.Pair, examples: Any) -> Any:
    """The inputs on which the outputs are compared: of the task, else random ones as many as the model's own size is known."""
    from workbench.architectures import Architecture

    if pair.task is not None:
        return next(iter(pair.task.splits.values()))[0][:CHECKED]
    return pair.described.example_inputs(CHECKED, seed=1) if isinstance(pair.described, Architecture) else examples


def run(arguments: argparse.Namespace) -> int:
    pair = inputs.read_pair(arguments, task_needed=False)
    inputs.require_writable(arguments.out)
    matcher = matching.read_matcher(arguments.matcher)
    matching.require_data_for(matcher, pair)
    examples = inputs.example_inputs(arguments, pair.described) if pair.task is None else pair.task.example_inputs
    from workbench.matching import align
    from workbench.symmetry import discover_symmetry

    with console.progress() as report:
        symmetry = discover_symmetry(pair.model, examples, progress=report)
        found = align(
            symmetry,
            pair.anchor,
            pair.moving,
            matcher,
            seed=arguments.seed,
            device=arguments.device,
            model=pair.model,
            inputs=_checked(pair, examples),
            task=pair.task,
            progress=report,
        )
    if arguments.out is not None:
        pair.write_aligned(found, arguments.out)
        console.note(f"wrote {arguments.out}")
    kept = found.preservation
    data = {"a": pair.names[0], "b": pair.names[1], "model": pair.model_name, **found.summary()}
    data["notes"] = [*pair.notes, *found.notes]
    rows = [
        ["distance between A and B", found.distance_before, found.distance_after],
        ["objective", found.history[0].objective if len(found.history) > 1 else None, found.objective],
    ]
    words = [
        matching.how_it_ended(found),
        f"units moved: {', '.join(f'{name} {count}' for name, count in found.units_moved.items())}",
        f"function of B {'kept' if kept.passed else 'NOT KEPT'}: outputs changed by at most {kept.max_abs_change:.1e} "
        f"(largest output {kept.scale:.3g}, {kept.examples} examples, {kept.dtype})",
        *data["notes"],
    ]
    table = console.table(["", "before", "after"], rows)
    console.answer(arguments, data, "\n".join([pair.heading(), "", table, "", *words]))
    return 0 if kept.passed else 1
