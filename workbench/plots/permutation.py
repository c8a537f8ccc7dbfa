"""A permutation as a matrix: one mark per unit, at the place it came from."""

from __future__ import annotations

import holoviews as hv
import numpy as np

from workbench.plots import plot
from workbench.plots.style import ALIGNED, NULL, figure_options


@plot("permutation")
def permutation(indices: np.ndarray, *, name: str = "units") -> hv.Overlay:
    """The permutation matrix of ``indices``: position i of the aligned model holds unit ``indices[i]`` of the moving one.

    indices: int array of shape (n,), or (*copies, n) for a factor that lies over others; the copies are drawn as the blocks of
    a block-diagonal matrix. Units that stayed lie on the grey diagonal.
    """
    rows = np.asarray(indices)
    n = rows.shape[-1]
    blocks = rows.reshape(-1, n)
    offset = np.arange(len(blocks))[:, None] * n
    place = (offset + np.arange(n)).ravel()
    source = (offset + blocks).ravel()
    moved = int((place != source).sum())
    total = place.size
    size = float(np.clip(420 / max(total, 1), 2, 9))
    matrix = hv.Points({"place": place, "source": source}, ["place", "source"], label="unit")
    diagonal = hv.Curve([(-0.5, -0.5), (total - 0.5, total - 0.5)], "place", "source", label="unmoved")
    limits = (-0.5 - 0.01 * total, total - 0.5 + 0.01 * total)
    copies = f", {len(blocks)} copies" if len(blocks) > 1 else ""
    return (
        diagonal.opts(color=NULL, line_dash="dotted", line_width=1)
        * matrix.opts(color=ALIGNED, marker="square", size=size, tools=["hover"])
    ).opts(
        **figure_options(
            title=f"{name}: {moved} of {total} units moved{copies}",
            xlabel="place in the aligned model",
            ylabel="unit of the moving model",
            xlim=limits,
            ylim=limits[::-1],
            show_legend=False,
            height=400,
        )
    )
