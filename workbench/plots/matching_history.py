"""How a matcher got there: its objective after every step, coloured by the factor that was solved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import holoviews as hv
import numpy as np

from workbench.plots import plot
from workbench.plots.drawable import drawable, note
from workbench.plots.style import NULL, factor_colour, figure_options


@plot("matching_history")
def matching_history(history: Sequence[Any]) -> hv.Overlay:
    """Objective against step number; a grey line where a new sweep begins.

    history: the records of an ``Alignment`` in order, each with ``sweep``, ``factor``, ``objective`` and ``units_changed``.
    A record with an empty factor is the objective before any move. A step that changed no unit is drawn small: the factor was
    visited and kept.
    """
    steps = np.arange(1, len(history) + 1)
    piece = drawable([record.objective for record in history])
    frame = {
        "step": steps,
        "objective": piece.values,
        "sweep": [int(record.sweep) for record in history],
        "factor": [str(record.factor) or "start" for record in history],
        "units changed": [int(record.units_changed) for record in history],
        "size": [8 if record.units_changed else 4 for record in history],
    }
    sweeps = frame["sweep"]
    marks = [
        hv.VLine(i + 0.5).opts(color=NULL, line_width=1, line_dash="dotted")
        for i in range(1, len(sweeps))
        if sweeps[i] != sweeps[i - 1]
    ]
    layers: list[hv.Element] = [
        *marks,
        hv.Curve(frame, "step", "objective").opts(color=NULL, line_width=1.5),
    ]
    names = list(dict.fromkeys(frame["factor"]))
    for index, name in enumerate(names):
        chosen = [i for i, factor in enumerate(frame["factor"]) if factor == name]
        part = {key: np.asarray(column)[chosen] for key, column in frame.items()}
        points = hv.Scatter(part, "step", ["objective", "sweep", "factor", "units changed", "size"], label=name)
        layers.append(points.opts(color=NULL if name == "start" else factor_colour(index), size="size", tools=["hover"]))
    said = note([piece])
    return hv.Overlay(layers).opts(
        **figure_options(
            title="Matching objective after each step" + (f" · {said}" if said else ""),
            xlabel="step (dotted: a new sweep)",
            ylabel="objective",
            legend_position="right",
            show_legend=len(names) <= 12,
            padding=0.08,
        )
    )
