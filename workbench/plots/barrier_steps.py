"""The barrier while the alignment is applied factor by factor: one mark per set of factors and split."""

from __future__ import annotations

from collections.abc import Mapping

import holoviews as hv
import xarray as xr

from workbench.plots import plot
from workbench.plots.drawable import drawable, note
from workbench.plots.style import MARKERS, PARTIAL, figure_options


@plot("barrier_steps")
def barrier_steps(steps: Mapping[str, xr.DataArray]) -> hv.Overlay:
    """Barrier per split for every set of factors applied.

    steps: words for the set ("none (naive)", "layers.0", …) -> barrier over ``split``, in the order to draw, top to bottom. An
    undefined barrier (NaN) has no mark.
    """
    first = next(iter(steps.values()))
    splits = [str(split) for split in first["split"].to_numpy()]
    pieces = []
    layers: list[hv.Element] = []
    for index, split in enumerate(splits):
        piece = drawable([float(found.sel(split=split)) for found in steps.values()])
        pieces.append(piece)
        frame = {"factors": list(steps), "barrier": piece.values, "split": [split] * len(steps)}
        marks = hv.Scatter(frame, "factors", ["barrier", "split"], label=split)
        layers.append(
            marks.opts(
                color=PARTIAL,
                marker=MARKERS[index % len(MARKERS)],
                fill_alpha=1.0 if index == 0 else 0.0,
                line_width=1.5,
                size=9 if index == 0 else 12,
                tools=["hover"],
                invert_axes=True,
            )
        )
    said = note(pieces)
    definition = str(first.attrs.get("definition", "")).partition(":")[0]
    return hv.Overlay(layers).opts(
        **figure_options(
            title=f"Barrier ({definition})" + (f" · {said}" if said else ""),
            xlabel="",
            ylabel="barrier",
            legend_position="right",
            invert_axes=True,
            invert_yaxis=True,
            height=100 + 26 * len(steps),
            padding=0.1,
            xticks=4,
        )
    )
