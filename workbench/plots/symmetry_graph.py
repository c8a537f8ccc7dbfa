"""The group as a graph: factors on the left, tensors with a bar per axis on the right, an edge where one moves the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import holoviews as hv
import numpy as np

from workbench.plots import plot
from workbench.plots.style import NULL, factor_colour, figure_options

# Where a factor and the first axis of a tensor are 1 apart: one axis from the next, and the space between.
CELL, GAP = 0.11, 0.025
TALL = 0.3  # half the height of a bar; rows are 1 apart
ROW = 21  # pixels of a tensor's row
FADED = 0.12
AT = ["across", "down"]
BOX = ["left", "top", "right", "bottom"]


@plot("symmetry_graph")
def symmetry_graph(
    groups: Mapping[str, Any], axes: Sequence[Any], *, selected: str | None = None, most: int | None = 120
) -> hv.Overlay:
    """Which tensor axes each factor moves: a bar has the colours of its factors; grey is what stays, and hovering says why.

    groups: name -> a group with ``size``, ``copies``, ``over``, ``kind`` and ``log10_order``; axes: the rows of ``tensor_axes``.
    selected: a factor or tensor to stand out, the rest fades; most: of more tensors than these only the first are drawn, and
    those that belong to the selected one (None: all).
    """
    tensors, left_out = _shown(axes, selected, most)
    place = {name: row for row, name in enumerate(tensors)}
    rows = [axis for axis in axes if axis.tensor in place]
    touched = {name for axis in rows for name in axis.factors}
    names = [name for name in groups if name in touched]
    colours = {name: factor_colour(index) for index, name in enumerate(groups)}
    heights = _heights(names, rows, place)
    columns = max((_column(axis, rows) for axis in rows), default=0) + 1
    bright, bars = _related(rows, selected), _bars(rows)
    layers = [
        *([_edges(bars, place, heights, colours, bright)] if names else []),
        _moved(bars, place, colours, bright),
        _still(bars, place, bright),
        _factors(names, groups, heights, colours, bright),
        _labels(names, groups, heights, colours, bright),
    ]
    shapes = {axis.tensor: "×".join(map(str, axis.shape)) for axis in rows}
    told = f"{len(names)} factor{'s' * (len(names) != 1)}, {len(tensors)} tensors"
    return hv.Overlay(layers).opts(
        **figure_options(
            title=told + (f" · {left_out} more tensors not drawn; choose a factor to see all of its own" if left_out else ""),
            xlabel="",
            ylabel="",
            xaxis=None,
            yaxis="right",
            yticks=[(row, f"{name}  {shapes[name]}") for name, row in place.items()],
            xlim=(-1.0, 1 + CELL * columns),
            ylim=(len(tensors) - 0.3, -0.7),
            show_grid=False,
            active_tools=["tap"],
            show_legend=False,
            height=max(200, 60 + ROW * len(tensors)),
            min_width=620,
        )
    )


def _shown(axes: Sequence[Any], selected: str | None, most: int | None) -> tuple[list[str], int]:
    """Names of the tensors drawn, and how many are left out."""
    tensors = list(dict.fromkeys(axis.tensor for axis in axes))
    if most is None or len(tensors) <= most:
        return tensors, 0
    own = {axis.tensor for axis in axes if selected is not None and (selected in axis.factors or axis.tensor == selected)}
    kept = own or set(tensors[:most])
    return [name for name in tensors if name in kept], len(tensors) - len(kept)


def _related(rows: Sequence[Any], selected: str | None) -> Any:
    """Whether a (factor, tensor) stands out; either may be None."""
    tensors = {axis.tensor for axis in rows if selected in axis.factors} | {selected}
    factors = {name for axis in rows if axis.tensor == selected for name in axis.factors} | {selected}

    def bright(factor: str | None, tensor: str | None) -> bool:
        if selected is None:
            return True
        if factor is not None and tensor is not None:
            return selected in (factor, tensor)
        return (factor in factors) if factor is not None else (tensor in tensors)

    return bright


def _heights(names: Sequence[str], rows: Sequence[Any], place: Mapping[str, int]) -> dict[str, float]:
    """Each factor at the mean height of its tensors, pushed apart so that no two labels lie on each other."""
    mean = {name: float(np.mean([place[axis.tensor] for axis in rows if name in axis.factors])) for name in names}
    ordered = sorted(names, key=mean.__getitem__)
    last = len(place) - 1
    gap = min(1.0, last / max(1, len(ordered) - 1))
    heights = np.array([mean[name] for name in ordered])
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    if len(heights) and heights[-1] > last:
        heights[-1] = last
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - gap)
    return dict(zip(ordered, heights.tolist(), strict=True))


def _bars(rows: Sequence[Any]) -> list[tuple[Any, str | None, float, float]]:
    """(axis, factor or None for what stays, left, right): the bar of every axis, in as many parts as it has factors and a rest."""
    bars = []
    for axis in rows:
        parts = [*axis.factors, *([None] if axis.reason else [])]
        width = (CELL - GAP) / max(1, len(parts))
        start = 1 + CELL * _column(axis, rows)
        bars += [(axis, part, start + width * i, start + width * (i + 1)) for i, part in enumerate(parts)]
    return bars


def _column(axis: Any, rows: Sequence[Any]) -> int:
    """Axis 0 comes first, except where some tensors move as a whole: those have a bar before it."""
    return 0 if axis.axis is None else axis.axis + any(row.axis is None for row in rows)


def _said(axis: Any) -> str:
    if axis.axis is None:
        return f"{axis.tensor} as a whole, among {axis.size} branches"
    return f"{axis.tensor} axis {axis.axis}"


def _sized(axis: Any) -> str:
    return _said(axis) if axis.axis is None else f"{_said(axis)} of size {axis.size}"


def _edges(bars: Any, place: Any, heights: Any, colours: Any, bright: Any) -> hv.Contours:
    t = np.linspace(0, 1, 16)
    bend = t * t * (3 - 2 * t)
    lines = [
        {
            "across": t * (left + right) / 2,
            "down": heights[name] + bend * (place[axis.tensor] - heights[name]),
            "factor": name,
            "axis": _said(axis),
            "layout": axis.layout,
            "colour": colours[name],
            "alpha": 0.75 if bright(name, axis.tensor) else FADED,
        }
        for axis, name, left, right in bars
        if name is not None
    ]
    return hv.Contours(lines, AT, ["factor", "axis", "layout", "colour", "alpha"]).opts(
        color=hv.dim("colour"),
        alpha=hv.dim("alpha"),
        line_width=1.6,
        tools=["hover"],
        hover_tooltips=[("factor", "@factor"), ("moves", "@axis"), ("laid out as", "@layout")],
    )


def _moved(bars: Any, place: Any, colours: Any, bright: Any) -> hv.Rectangles:
    chosen = [bar for bar in bars if bar[1] is not None]
    frame = {
        **_box(chosen, place),
        "axis": [_sized(axis) for axis, *_ in chosen],
        "factor": [name for _, name, *_ in chosen],
        "layout": [axis.layout for axis, *_ in chosen],
        "colour": [colours[name] for _, name, *_ in chosen],
        "alpha": [1.0 if bright(name, axis.tensor) else FADED for axis, name, *_ in chosen],
    }
    return hv.Rectangles(frame, BOX, ["axis", "factor", "layout", "colour", "alpha"]).opts(
        color="colour",
        alpha="alpha",
        line_width=0,
        tools=["hover"],
        hover_tooltips=[("axis", "@axis"), ("moved by", "@factor"), ("laid out as", "@layout")],
    )


def _still(bars: Any, place: Any, bright: Any) -> hv.Rectangles:
    """What no factor moves, with the reason."""
    chosen = [axis for axis, name, *_ in bars if name is None]
    frame = {
        **_box([bar for bar in bars if bar[1] is None], place),
        "axis": [_sized(axis) for axis in chosen],
        "part": [f"a part of it, {axis.layout}" if axis.factors else "all of it" for axis in chosen],
        "reason": [axis.reason for axis in chosen],
        "alpha": [0.55 if bright(None, axis.tensor) else FADED for axis in chosen],
    }
    return hv.Rectangles(frame, BOX, ["axis", "part", "reason", "alpha"]).opts(
        color=NULL,
        alpha="alpha",
        line_width=0,
        tools=["hover"],
        hover_tooltips=[("axis", "@axis"), ("stays", "@part"), ("because", "@reason")],
    )


def _box(bars: Any, place: Any) -> dict[str, list[float]]:
    y = [place[axis.tensor] for axis, *_ in bars]
    return {
        "left": [left for *_, left, _ in bars],
        "top": [row - TALL for row in y],
        "right": [right for *_, right in bars],
        "bottom": [row + TALL for row in y],
    }


def _factors(names: Sequence[str], groups: Any, heights: Any, colours: Any, bright: Any) -> hv.Points:
    frame = {
        "across": [0.0] * len(names),
        "down": [heights[name] for name in names],
        "factor": list(names),
        "units": [_count(groups[name]) for name in names],
        "over": [", ".join("a fixed axis" if o.startswith("=") else o for o in groups[name].over) or "nothing" for name in names],
        "order": [f"10^{groups[name].log10_order:.1f}" for name in names],
        "colour": [colours[name] for name in names],
        "alpha": [1.0 if bright(name, None) else FADED for name in names],
        "size": [7 + 3 * np.log10(max(1, groups[name].size * groups[name].copies)) for name in names],
    }
    return hv.Points(frame, AT, ["factor", "units", "over", "order", "colour", "alpha", "size"]).opts(
        color="colour",
        alpha="alpha",
        size="size",
        tools=["hover", "tap"],
        nonselection_alpha=1.0,
        hover_tooltips=[("factor", "@factor"), ("units", "@units"), ("one for each value of", "@over"), ("members", "@order")],
    )


def _labels(names: Sequence[str], groups: Any, heights: Any, colours: Any, bright: Any) -> hv.Labels:
    frame = {
        "across": [-0.035] * len(names),
        "down": [heights[name] for name in names],
        "text": [f"{name} · {_count(groups[name])}" for name in names],
        "colour": [colours[name] for name in names],
        "alpha": [1.0 if bright(name, None) else 0.3 for name in names],
    }
    return hv.Labels(frame, AT, ["text", "colour", "alpha"]).opts(
        text_color="colour", text_alpha="alpha", text_align="right", text_baseline="middle", text_font_size="9pt"
    )


def _count(group: Any) -> str:
    """``256``, or ``4 × 8`` for four copies of eight units."""
    return f"{group.copies} × {group.size}" if group.copies > 1 else str(group.size)
