"""How far the singular directions of two networks agree, layer by layer, beside what unrelated networks give."""

from __future__ import annotations

import holoviews as hv
import numpy as np
import xarray as xr

from workbench.plots import plot
from workbench.plots.drawable import drawable, note
from workbench.plots.style import STAGE_COLOURS, figure_options

# variable, stage, label, colour, marker; the nulls are drawn first so that the trained pair lies on top
SERIES = (
    ("null_R", "after", "null, same γ", STAGE_COLOURS["null"], "x"),
    ("null_R_same_k", "after", "null, same count", STAGE_COLOURS["null"], "diamond"),
    ("R", "before", "before", STAGE_COLOURS["before"], "circle"),
    ("R", "after", "after", STAGE_COLOURS["after"], "circle"),
)


@plot("alignment_spectrum")
def alignment_spectrum(dataset: xr.Dataset, *, gamma: float | None = None) -> hv.Overlay:
    """R per layer at one γ: before, after, and its null, unrelated networks matched the same way.

    "null, same γ" keeps the directions above the same threshold, "null, same count" as many as the trained pair keeps.

    dataset: what ``singular_alignment`` returns: ``R(stage, gamma, layer)``, ``R_total(stage, gamma)`` and, where there is a
    null, ``null_R`` and ``null_R_same_k``. gamma: one of its coordinates (default: the middle one). The last row is the total.
    """
    choices = dataset["gamma"].to_numpy()
    chosen = float(choices[len(choices) // 2] if gamma is None else choices[np.abs(choices - gamma).argmin()])
    layers = [str(layer) for layer in dataset["layer"].to_numpy()]
    rows = [*layers, "total"]
    marks: list[hv.Element] = []
    pieces = []
    for variable, stage, label, colour, marker in SERIES:
        if variable not in dataset or stage not in dataset["stage"].to_numpy():
            continue
        place = {"stage": stage, "gamma": chosen}
        piece = drawable([*dataset[variable].sel(place).to_numpy(), dataset[f"{variable}_total"].sel(place).item()])
        pieces.append(piece)
        frame = {"layer": rows, "R": piece.values, "of": [label] * len(rows)}
        hollow = {"fill_alpha": 0.0} if marker == "diamond" else {}
        marks.append(
            hv.Scatter(frame, "layer", ["R", "of"], label=label).opts(
                color=colour, marker=marker, size=10, line_width=2, tools=["hover"], **hollow
            )
        )
    said = note(pieces)
    return hv.Overlay([*marks, hv.HLine(0).opts(color=STAGE_COLOURS["null"], line_width=1)]).opts(
        **figure_options(
            title=f"Agreement of singular directions, γ = {chosen:g}" + (f" · {said}" if said else ""),
            xlabel="",
            ylabel="R   (1: same directions)",
            invert_axes=True,
            invert_yaxis=True,
            legend_position="right",
            height=max(260, 110 + 30 * len(rows)),
            padding=0.08,
        )
    )
