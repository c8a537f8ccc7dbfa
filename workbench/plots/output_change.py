"""Outputs before and after a change of the weights, one on top of the other."""

from __future__ import annotations

import holoviews as hv
import numpy as np
import xarray as xr

from workbench.plots import plot
from workbench.plots.drawable import drawable, note
from workbench.plots.style import STAGE_COLOURS, figure_options


@plot("output_change")
def output_change(dataset: xr.Dataset, *, examples: int = 5, outputs: int = 12) -> hv.Overlay:
    """The first outputs of the first examples: a ring before, a dot after. A dot in every ring: the function is the same.

    dataset: what ``compare_outputs`` returns, ``outputs(weights, example, output)``. The title holds the largest difference over
    all of it, drawn or not.
    """
    values = dataset["outputs"]
    pieces = {name: drawable(values.sel(weights=name)[:examples, :outputs].to_numpy()) for name in ("before", "after")}
    rows, columns = pieces["before"].values.shape
    x = (np.arange(rows)[:, None] * (columns + 1.5) + np.arange(columns)).ravel()
    before, after = (pieces[name].values.ravel() for name in ("before", "after"))
    lines = hv.Segments((x, before, x, after), ["x", "value", "x1", "value1"]).opts(color=STAGE_COLOURS["null"], line_width=1)
    layers: list[hv.Element] = [lines]
    for name, numbers in (("before", before), ("after", after)):
        frame = {
            "x": x,
            "value": numbers,
            "example": np.repeat(np.arange(rows), columns),
            "output": np.tile(np.arange(columns), rows),
            "weights": [name] * len(x),
        }
        marks = hv.Scatter(frame, "x", ["value", "example", "output", "weights"], label=name)
        layers.append(
            marks.opts(
                color=STAGE_COLOURS[name],
                size=11 if name == "before" else 5,
                fill_alpha=0.0 if name == "before" else 1.0,
                line_width=1.8 if name == "before" else 0,
                tools=["hover"],
                hover_tooltips=["weights", "example", "output", "value"],
            )
        )
    attributes = values.attrs
    said = note(list(pieces.values()))
    drawn = "" if (rows, columns) == values.shape[1:] else f" · {rows} of {values.shape[1]} examples drawn"
    return hv.Overlay(layers).opts(
        **figure_options(
            title=f"Largest difference {attributes['max_abs_change']:.2g}, largest output {attributes['scale']:.3g}"
            + drawn
            + (f" · {said}" if said else ""),
            xlabel="example",
            ylabel="output",
            xticks=[((columns + 1.5) * row + (columns - 1) / 2, str(row)) for row in range(rows)],
            legend_position="right",
            padding=(0.03, 0.1),
        )
    )
