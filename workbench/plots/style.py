"""One look for every figure: colours that read on white and on near-black, for the colour-blind too, and shared options.

A colour always means the same thing: orange is the moving model as it came, blue is the aligned one, violet is a partial
alignment, grey is the null. A split is told by the line: solid is the first split (train), dashed the second (test).
"""

from __future__ import annotations

from typing import Any

import holoviews as hv
import holoviews.plotting.bokeh  # registers the backend: without it options of an element are refused

if not hv.Store.current_backend or hv.Store.current_backend not in hv.Store.loaded_backends():
    hv.Store.set_current_backend("bokeh")

NAIVE, ALIGNED, PARTIAL, NULL = "#e1752d", "#2b8fd6", "#9a6fd0", "#8c8c8c"
ALIGNMENT_COLOURS = {"naive": NAIVE, "aligned": ALIGNED, "partial": PARTIAL}
# Further alignments beside the one that is shown: apart from orange, from blue and from each other (CIE76 ≥ 25) also for the
# protan and the deutan eye, see tests/test_plots.py.
OTHER_COLOURS = ("#52cc8f", "#805933", "#174be6", "#85bacc", "#5e5380", "#538074")
MARKERS = ("circle", "diamond", "square", "triangle", "inverted_triangle", "plus", "x", "star")
STAGE_COLOURS = {"before": NAIVE, "after": ALIGNED, "null": NULL}
FACTOR_COLOURS = ("#2b8fd6", "#e1752d", "#2aa37a", "#c65b9c", "#b39b1e", "#9a6fd0", "#d1495b", "#5aa9c9")
DASHES = ("solid", "dashed", "dotted", "dotdash")
TOOLS = ("pan", "box_zoom", "wheel_zoom", "save", "reset")


def figure_options(**more: Any) -> dict[str, Any]:
    """Options every overlay gets; ``more`` wins."""
    return {
        "responsive": True,
        "height": 320,
        "show_grid": True,
        "default_tools": list(TOOLS),
        "active_tools": [],
        "toolbar": "above",
        "autohide_toolbar": True,
        "backend_opts": {"plot.toolbar.logo": None},
        "fontsize": {"title": "11pt", "labels": "10pt", "xticks": "9pt", "yticks": "9pt", "legend": "9pt"},
        **more,
    }


def factor_colour(index: int) -> str:
    """The colour of the ``index``-th factor; they repeat after eight."""
    return FACTOR_COLOURS[index % len(FACTOR_COLOURS)]
