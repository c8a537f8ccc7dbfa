"""Bring B close to A by a member of the architecture's symmetry group, and prove that B's function was kept."""

from __future__ import annotations

import argparse

from workbench.cli import console, inputs

HELP = "align checkpoint B to checkpoint A"


def configure(parser: argparse.ArgumentParser) -> None:
    inputs.add_pair(parser)
    inputs.add_matching(parser)
    parser.add_argument("--out", metavar="FILE", help="write the aligned checkpoint here (.safetensors)")


def run(arguments: argparse.Namespace) -> int:
    pair = inputs.read_pair(arguments)
    from workbench.checkpoints import save_checkpoint
    from workbench.matching import align
    from workbench.symmetry import discover_symmetry

    with console.progress() as report:
        symmetry = discover_symmetry(pair.model, pair.task.example_inputs)
        found = align(
            symmetry,
            pair.anchor,
            pair.moving,
            inputs.read_matcher(arguments.matcher),
            seed=arguments.seed,
            device=arguments.device,
            model=pair.model,
            inputs=pair.task.example_inputs[0],
            progress=report,
        )
    if arguments.out:
        save_checkpoint(found.aligned, arguments.out, metadata=pair.metadata_of_aligned(found))
        console.note(f"wrote {arguments.out}")
    return 0
