"""The whole road for two checkpoints: symmetry, alignment, proof that the function was kept, loss between them, spectra.

Without A and B it compares a shipped pair. With --out it leaves a report that opens offline, the numbers, and aligned B.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import console, inputs, matching
from workbench.disk import output_file, output_folder, whole_file

if TYPE_CHECKING:
    from workbench.comparison import Comparison

HELP = "align two checkpoints and compare them: barriers, spectra, report"

FILES = ("report.html", "comparison.nc", "comparison.json", "aligned.safetensors")
MOST_PERMUTATIONS = 12  # a deep network has dozens of factors; a report with all of them would not open


def configure(parser: argparse.ArgumentParser) -> None:
    inputs.add_pair(parser)
    matching.add_matching(parser)
    inputs.add_judging(parser)
    inputs.add_spectra(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="write report.html, comparison.nc, comparison.json and aligned.safetensors here"
    )


def run(arguments: argparse.Namespace) -> int:
    pair = inputs.read_pair(arguments)
    # What cannot be written is said before the long work.
    folder = None if arguments.out is None else output_folder(arguments.out)
    for name in FILES if folder is not None else ():
        output_file(folder / name)
    from workbench.comparison import compare

    with console.progress() as report:
        found = compare(
            pair.anchor,
            pair.moving,
            pair.model,
            pair.task,
            matcher=matching.read_matcher(arguments.matcher),
            points=arguments.points,
            splits=arguments.splits,
            gamma=arguments.gamma,
            null=not arguments.no_null,
            seed=arguments.seed,
            device=arguments.device,
            progress=report,
        )
    data = {"a": pair.names[0], "b": pair.names[1], "model": pair.model_name, "task": pair.task.name, **found.summary()}
    data["notes"] = list(pair.notes)
    if folder is not None:
        for path in _write(folder, pair, found, data):
            console.note(f"wrote {path}")
    console.answer(arguments, data, _text(pair, found, data))
    return 0 if found.alignment.preservation.passed else 1


def _write(folder: Path, pair: inputs.Pair, found: Comparison, data: dict[str, Any]) -> list[Path]:
    """The report, the numbers twice, and aligned B."""
    from workbench.plots import PLOTS
    from workbench.plots.report import report_html
    from workbench.schema import write_netcdf

    figures = {
        "Loss from A to B, naive and aligned": PLOTS["profile"](found.profile, metric="loss"),
        **{
            f"{metric.capitalize()} from A to B": PLOTS["profile"](found.profile, metric=metric)
            for metric in map(str, found.profile.data_vars)
            if metric != "loss"
        },
        "How the matcher got there": PLOTS["matching_history"](found.alignment.history),
    }
    if found.spectra is not None:
        figures["Agreement of singular directions, beside unrelated networks"] = PLOTS["alignment_spectrum"](found.spectra)
        figures["Singular values"] = PLOTS["singular_values"](found.spectra)
    for name, permutation in list(found.alignment.element.permutations.items())[:MOST_PERMUTATIONS]:
        figures[f"Where the units of {name} came from"] = PLOTS["permutation"](permutation.numpy(), name=name)
    title = f"{pair.names[0]} and {pair.names[1]}"
    page = report_html(data, figures, title)
    numbers = json.dumps(console.plain(data), indent=2, allow_nan=False) + "\n"
    # All four under other names first: a stop or a full disk must not leave a new report beside old numbers.
    with ExitStack() as stack:
        report, dataset, plain, aligned = (stack.enter_context(whole_file(folder / name)) for name in FILES)
        report.write_text(page, encoding="utf-8")
        write_netcdf(found.to_dataset(), dataset)
        plain.write_text(numbers, encoding="utf-8")
        pair.write_aligned(found.alignment, aligned)
    return [folder / name for name in FILES]


def _text(pair: inputs.Pair, found: Comparison, data: dict[str, Any]) -> str:
    """One table: what was measured, naive, aligned, and unrelated networks beside it."""
    rows: list[list[Any]] = []
    for metric in map(str, found.profile.data_vars):
        barriers = data["barriers"][f"{metric}_barrier_linear"]
        for split in map(str, found.profile["split"].values):
            rows.append([f"{metric} barrier, {split}", barriers["naive"][split], barriers["aligned"][split], None])
    alignment = found.alignment
    spectra = data["spectra"] or {}
    rows.append(["distance from A", alignment.distance_before, alignment.distance_after, None])
    rows.append(["  cut by", None, f"{alignment.l2_cut:.1%}", _percent(spectra.get("null_l2_cut"))])
    null = spectra.get("null_R", {}).get("after", {})
    for gamma, after in spectra.get("R", {}).get("after", {}).items():
        rows.append([f"R, gamma {gamma}", spectra["R"]["before"][gamma], after, null.get(gamma)])
    kept = alignment.preservation
    ends = data["ends"].get("accuracy", data["ends"]["loss"])
    words = [
        found.verdict,
        f"function of B {'kept' if kept.passed else 'NOT KEPT'}: outputs changed by at most {kept.max_abs_change:.1e} on "
        f"{kept.examples} examples (largest output {kept.scale:.3g}, {kept.dtype})",
        "ends: "
        + ", ".join(f"{split} A {console.figure(e['anchor'])} B {console.figure(e['moving'])}" for split, e in ends.items()),
        matching.how_it_ended(alignment),
        "barrier: linear definition, max over "
        f"{data['points']} points of the loss above the line between the ends; calibration {data['calibration']}",
        "seconds: " + ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in found.seconds.items()),
        *alignment.notes,
        *data["notes"],
    ]
    table = console.table(["", "naive", "aligned", "null"], rows)
    return "\n".join([pair.heading(), "", table, "", *words])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
