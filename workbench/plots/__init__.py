"""Plots: labelled numbers in, HoloViews elements out. Nothing here computes a result, and nothing here imports torch.

Every plot is one file with one function under ``@plot("name")``; it is then listed in ``PLOTS`` and swept by the plot
tests. The elements are plain HoloViews on the Bokeh backend: a notebook shows them, the dashboard binds them to its
state, a report embeds them. Values that cannot be drawn are never dropped in silence: see ``workbench.plots.drawable``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.registry import Registry

PLOTS: Registry[Callable[..., Any]] = Registry("plot", package="workbench.plots", group="workbench.plots")
plot = PLOTS.register
