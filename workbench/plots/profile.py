"""Loss or accuracy along a path: one curve per alignment and split, and the chord its barrier is measured from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import holoviews as hv
import numpy as np
import xarray as xr

from workbench.plots import plot
from workbench.plots.drawable import Drawable, drawable, note
from workbench.plots.style import ALIGNMENT_COLOURS, DASHES, MARKERS, NULL, OTHER_COLOURS, figure_options


@plot("profile")
def profile(
    dataset: xr.Dataset,
    *,
    metric: str = "loss",
    log: bool = False,
    at: float | None = None,
    chord: bool = True,
    words: Mapping[str, str] | None = None,
    colours: Mapping[str, str] | None = None,
) -> hv.Overlay:
    """``dataset[metric]`` against t in [0, 1]; t = 0 is the anchor, t = 1 the other model.

    dataset: ``metric(split, t)``, or ``metric(alignment, split, t)`` with alignments "naive", "aligned", "partial" and others by
    any name, which get a thinner line, a colour and a mark of their own. A variable
    ``measured(alignment, t)`` of booleans marks points not evaluated yet: they are neither drawn nor counted as missing.
    log: log axis; values ≤ 0 are drawn at a floor and said so. at: a t to mark. chord: the dotted straight line between the
    ends of the first finished alignment, from which the "linear" barrier is measured (not straight on a log axis, so not drawn
    there). An alignment without any point is left out. words, colours: alignment -> what the legend calls it, its colour.
    """
    values = dataset[metric]
    if "alignment" not in values.dims:
        values = values.expand_dims(alignment=["path"])
    floor = _floor(values) if log else None
    curves: list[hv.Element] = []
    chords: list[hv.Element] = []
    # One element for the marks of all curves: a live figure is drawn again several times a second, and every element costs.
    points: dict[str, list] = {"t": [], metric: [], "of": [], "colour": [], "mark": []}
    names = [str(name) for name in values["alignment"].to_numpy()]
    looks = _looks(names, colours or {})
    drawn: list[Drawable] = []
    for alignment, split, style, t, y in _lines(dataset, values):
        piece = drawable(y, log=log, floor=floor)
        drawn.append(piece)
        label = split if alignment == "path" else f"{(words or {}).get(alignment, alignment)}, {split}"
        colour, width, mark = looks[alignment]
        curves.append(hv.Curve((t, piece.values), "t", metric, label=label).opts(color=colour, line_dash=style, line_width=width))
        for name, column in zip(points, (t, piece.values, *([item] * len(t) for item in (label, colour, mark))), strict=True):
            points[name].extend(column)
        ends = piece.values[[0, -1]] if len(t) > 1 and t[0] == 0 and t[-1] == 1 else np.array([np.nan])
        if chord and not log and len(chords) < values.sizes["split"] and np.isfinite(ends).all():
            line = hv.Curve([(0.0, ends[0]), (1.0, ends[1])], "t", metric, label="chord")
            chords.append(line.opts(color=NULL, line_dash="dotted", line_width=1))
    marks = [] if at is None else [position_mark(at)]
    said = note(drawn)
    title = _title(metric) + (f" · {said}" if said else "")
    dots = hv.Scatter(points, "t", [metric, "of", "colour", "mark"]).opts(
        color="colour", marker="mark", size=5, tools=["hover"], show_legend=False
    )
    overlay = hv.Overlay([*chords, *curves, dots, *marks])
    higher = dataset[metric].attrs.get("better", "lower") == "higher"
    return overlay.opts(
        **figure_options(
            title=title,
            xlabel="t   (0: anchor, 1: moving)",
            ylabel=_label(dataset, metric),
            logy=log,
            xlim=(-0.02, 1.02),
            # A barrier fills the middle: the corner on its far side stays free.
            legend_position="bottom_right" if higher else "top_right",
            legend_opts={"background_fill_alpha": 0.6, "border_line_alpha": 0.0},
            padding=(0, 0.08),
            framewise=True,
        )
    )


def _looks(names: list[str], colours: Mapping[str, str]) -> dict[str, tuple[str, float, str]]:
    """Alignment -> colour, line width and mark. The known ones keep their colour and stand out by the thicker line."""
    found: dict[str, tuple[str, float, str]] = {}
    others = [name for name in names if name not in ALIGNMENT_COLOURS and name != "path"]
    for name in names:
        if name in others:
            place = others.index(name)
            colour, width = OTHER_COLOURS[place % len(OTHER_COLOURS)], 1.75
            mark = MARKERS[1 + place % (len(MARKERS) - 1)]
        else:
            colour, width, mark = ALIGNMENT_COLOURS.get(name, ALIGNMENT_COLOURS["aligned"]), 2.5, MARKERS[0]
        found[name] = colours.get(name, colour), width, mark
    return found


def position_mark(t: float) -> hv.VLine:
    """The line that marks one t."""
    return hv.VLine(t).opts(color=NULL, line_width=1.5)


def _lines(dataset: xr.Dataset, values: xr.DataArray) -> Iterator[tuple[str, str, str, np.ndarray, np.ndarray]]:
    """(alignment, split, dash, t, values) of every curve, cut to the points measured so far."""
    measured = dataset.get("measured")
    t = values["t"].to_numpy()
    for alignment in values["alignment"].to_numpy():
        known = np.ones(len(t), dtype=bool)
        if measured is not None:
            known = (measured.sel(alignment=alignment) if "alignment" in measured.dims else measured).to_numpy()
        if not known.any():
            continue
        for number, split in enumerate(values["split"].to_numpy()):
            line = values.sel(alignment=alignment, split=split).to_numpy()
            yield str(alignment), str(split), DASHES[number % len(DASHES)], t[known], line[known]


def _floor(values: xr.DataArray) -> float:
    """One floor for all curves of a figure, so that zeros of different curves lie at one height."""
    numbers = values.to_numpy()
    positive = numbers[np.isfinite(numbers) & (numbers > 0)]
    return float(positive.min()) / 10 if positive.size else 1e-12


def _title(metric: str) -> str:
    return f"{metric.capitalize()} along the straight path"


def _label(dataset: xr.Dataset, metric: str) -> str:
    units = str(dataset[metric].attrs.get("units", ""))
    return f"{metric} ({units})" if units and units != "1" else metric
