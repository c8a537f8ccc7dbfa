"""Which singular directions of A and B agree, layer by layer, as they are and after alignment, beside unrelated networks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from workbench.cli import console, inputs, matching

if TYPE_CHECKING:
    from xarray import Dataset

HELP = "agreement of singular vectors, layer by layer"


def configure(parser: argparse.ArgumentParser) -> None:
    inputs.add_pair(parser)
    matching.add_matching(parser)
    inputs.add_spectra(parser)
    parser.add_argument("--out", metavar="FILE", help="write the figures as netCDF")


def run(arguments: argparse.Namespace) -> int:
    pair = inputs.read_pair(arguments)
    inputs.require_writable(arguments.out)
    from workbench.schema import write_netcdf
    from workbench.spectra import singular_alignment
    from workbench.symmetry import discover_symmetry

    with console.progress() as report:
        found = singular_alignment(
            pair.anchor,
            pair.moving,
            symmetry=discover_symmetry(pair.model, pair.task.example_inputs, progress=report),
            matcher=matching.read_matcher(arguments.matcher),
            model=pair.model,
            task=pair.task,
            gamma=arguments.gamma,
            null=not arguments.no_null,
            seed=arguments.seed,
            device=arguments.device,
            progress=report,
        )
    if arguments.out is not None:
        console.note(f"wrote {write_netcdf(found, arguments.out)}")
    data = {
        "a": pair.names[0],
        "b": pair.names[1],
        "model": pair.model_name,
        "definitions": {str(name): values.attrs.get("definition", "") for name, values in found.data_vars.items()},
        "total": _by_stage(found, "R_total"),
        "null_total": _by_stage(found, "null_R_total"),
        "layers": {str(layer): _by_stage(found.sel(layer=layer), "R") for layer in found["layer"].values},
        "null_layers": {str(layer): _by_stage(found.sel(layer=layer), "null_R") for layer in found["layer"].values},
        "l2_cut": float(found["l2_cut"]),
        "null_l2_cut": float(found["null_l2_cut"]) if "null_l2_cut" in found else None,
        "notes": pair.notes,
    }
    console.answer(arguments, data, f"{pair.heading()}\n\n{_table(found)}\n\n{_WORDS}")
    return 0


_WORDS = """\
R: agreement of the kept singular directions, 1 for equal layers. null: unrelated networks, matched the same way; only what lies
above it says that both learnt the same directions. gamma: directions kept, by their share of the layer's largest value."""


def _by_stage(found: Dataset, name: str) -> dict[str, dict[str, float]] | None:
    """stage -> gamma -> value, or None where the variable was not computed."""
    if name not in found:
        return None
    return {
        str(stage): {str(gamma): float(found[name].sel(stage=stage, gamma=gamma)) for gamma in found["gamma"].values}
        for stage in found["stage"].values
    }


def _table(found: Dataset) -> str:
    """One row per layer and gamma, and the totals."""
    columns = {"before": ("R", "before"), "after": ("R", "after"), "null after": ("null_R", "after")}
    shown = {title: at for title, at in columns.items() if at[0] in found}
    rows = []
    for layer in [*found["layer"].values, "total"]:
        for gamma in found["gamma"].values:
            cells = [
                found[name + "_total"].sel(stage=stage, gamma=gamma)
                if layer == "total"
                else found[name].sel(stage=stage, gamma=gamma, layer=layer)
                for name, stage in shown.values()
            ]
            rows.append([str(layer), f"{gamma:g}", *map(float, cells)])
    rows.append(["L2 cut", "", None, float(found["l2_cut"]), *([float(found["null_l2_cut"])] if "null after" in shown else [])])
    return console.table(["R of layer", "gamma", *shown], rows)
