"""The loss along the straight line from A to B as they are, and the barrier by every definition. Align first with `align`."""

from __future__ import annotations

import argparse

from workbench.cli import console, inputs

HELP = "loss barrier on the line from A to B, as they are"


def configure(parser: argparse.ArgumentParser) -> None:
    inputs.add_pair(parser)
    inputs.add_judging(parser)
    inputs.add_device(parser)
    parser.add_argument("--definition", help="only this definition of the barrier, see `workbench methods` (default: all)")
    parser.add_argument("--out", metavar="FILE", help="write the profile as netCDF")


def run(arguments: argparse.Namespace) -> int:
    pair = inputs.read_pair(arguments)
    inputs.require_writable(arguments.out)
    from workbench.barriers import DEFINITIONS, barrier
    from workbench.paths import LinearPath
    from workbench.profiles import profile_path
    from workbench.schema import write_netcdf

    with console.progress() as report:
        profile = profile_path(
            LinearPath(pair.anchor, pair.moving),
            pair.model,
            pair.task,
            points=arguments.points,
            splits=arguments.splits,
            device=arguments.device,
            progress=report,
        )
    definitions = [arguments.definition] if arguments.definition else list(DEFINITIONS)
    splits = [str(split) for split in profile["split"].values]
    barriers = {
        metric: {
            definition: dict(zip(splits, barrier(profile, metric, definition).values.tolist(), strict=True))
            for definition in definitions
        }
        for metric in map(str, profile.data_vars)
    }
    if arguments.out is not None:
        console.note(f"wrote {write_netcdf(profile, arguments.out)}")
    data = {
        "a": pair.names[0],
        "b": pair.names[1],
        "model": pair.model_name,
        "task": pair.task.name,
        "t": profile["t"].values,
        "profile": {name: {split: profile[name].sel(split=split).values for split in splits} for name in barriers},
        "barrier": barriers,
        "notes": pair.notes,
    }
    rows = [
        [metric, definition, *(values[split] for split in splits)]
        for metric, by_definition in barriers.items()
        for definition, values in by_definition.items()
    ]
    console.answer(arguments, data, "\n".join([pair.heading(), "", console.table(["barrier of", "definition", *splits], rows)]))
    return 0
