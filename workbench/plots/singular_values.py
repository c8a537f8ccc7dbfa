"""The singular values of one layer in both models, and the threshold below which directions do not count."""

from __future__ import annotations

import holoviews as hv
import numpy as np
import xarray as xr

from workbench.plots import plot
from workbench.plots.drawable import drawable, note
from workbench.plots.style import ALIGNED, NAIVE, NULL, figure_options

COLOURS = {"anchor": ALIGNED, "moving": NAIVE}


@plot("singular_values")
def singular_values(
    dataset: xr.Dataset, *, layer: str | None = None, gamma: float | None = None, log: bool = False
) -> hv.Overlay:
    """σ_i against i, largest first, for the anchor and the moving model; a permutation changes none of them.

    dataset: what ``singular_alignment`` returns, ``singular_values(model, layer, rank)``, NaN beyond a layer's rank. layer: one
    of its coordinates (default: the first). gamma: draws γ σ_max of each model; directions below it are not kept.
    """
    names = [str(name) for name in dataset["layer"].to_numpy()]
    layer = names[0] if layer is None else layer
    values = dataset["singular_values"].sel(layer=layer)
    curves: list[hv.Element] = []
    lines: list[hv.Element] = []
    pieces = []
    for model in values["model"].to_numpy():
        numbers = values.sel(model=model).to_numpy()
        known = np.flatnonzero(~np.isnan(numbers))
        numbers = numbers[: known[-1] + 1] if known.size else numbers[:0]
        piece = drawable(numbers, log=log)
        pieces.append(piece)
        frame = {"i": np.arange(1, len(numbers) + 1), "σ": piece.values, "of": [str(model)] * len(numbers)}
        colour = COLOURS.get(str(model), NULL)
        curves.append(hv.Curve(frame, "i", ["σ", "of"], label=str(model)).opts(color=colour, line_width=1.5, tools=["hover"]))
        curves.append(hv.Scatter(frame, "i", ["σ", "of"], label=str(model)).opts(color=colour, size=4, tools=["hover"]))
        if gamma and len(numbers):
            lines.append(hv.HLine(gamma * float(np.nanmax(numbers))).opts(color=colour, line_dash="dotted", line_width=1))
    said = note(pieces)
    threshold = f", dotted: {gamma:g} σ_max" if gamma else ""
    return hv.Overlay([*lines, *curves]).opts(
        **figure_options(
            title=f"Singular values, {layer}{threshold}" + (f" · {said}" if said else ""),
            xlabel="i",
            ylabel="σ",
            logy=log,
            legend_position="top_right",
            padding=0.05,
        )
    )
