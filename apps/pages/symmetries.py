"""*Symmetries*: the group of one model, drawn and explained, and what its elements do to the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holoviews as hv
import panel as pn
import panel_material_ui as pmui

from workbench.plots import PLOTS

from .. import symmetries_words as words
from ..states.symmetries import EVERYTHING, SymmetriesState
from . import Parts, Session, page

INTRODUCTION = """
## Which changes of the weights leave a network's function alone?

Choose a checkpoint, or a built-in architecture with its options, and press **Discover**. You will see

1. the group of permutations, read off the model's computation graph and proved by test,
2. which axes of which tensors each factor moves, and what keeps the others where they are,
3. the outputs before and after a random element: the same, to the last digits,
4. the outputs after a part of an element, one tensor moved without those tied to it: the control that must fail.

The shipped networks take a few seconds.
"""
CAPTION = "Factors and their units; tensors with a bar per axis. Grey stays: point at it to see why. Click a factor to select it."
HINT = "The control that must fail: one tensor is permuted, those tied to it stay where they are, and the outputs change."

WIDE: dict[str, Any] = {"sizing_mode": "stretch_width"}
TALLEST = 640  # pixels of the graph; what is longer scrolls


@page("symmetries")
def symmetries(session: Session) -> Parts:
    """One model: discover its group, see it, explain it, apply an element, break one."""
    view = SymmetriesView(SymmetriesState(session.jobs, session.settings))
    return Parts(view.sidebar(), view.main())


class SymmetriesView:
    """The widgets and figures of one visitor's look at one model."""

    def __init__(self, state: SymmetriesState) -> None:
        self.state = state

    # -- side bar

    def sidebar(self) -> list[pn.viewable.Viewable]:
        state, parameters = self.state, self.state.param
        running = parameters.status.rx() == "running"
        discover = pmui.Button(
            label="Discover", icon="play_arrow", color="primary", variant="contained", disabled=running, **WIDE
        )
        discover.on_click(lambda event: state.discover())
        cancel = pmui.Button(label="Cancel", icon="stop", color="error", variant="outlined", disabled=running.rx.not_(), **WIDE)
        cancel.on_click(lambda event: state.cancel())
        fraction = parameters.fraction.rx()
        bar = pmui.LinearProgress(
            value=fraction.rx.pipe(lambda share: round(100 * (share or 0))),
            variant=fraction.rx.pipe(lambda share: "indeterminate" if share is None else "determinate"),
            visible=running,
            **WIDE,
        )
        return [
            pmui.Select.from_param(parameters.source, margin=(20, 10, 8, 10), **WIDE),
            pmui.TextAreaInput.from_param(parameters.options, visible=parameters.has_options, margin=(8, 10), rows=3, **WIDE),
            pmui.Select.from_param(parameters.task, margin=(8, 10), **WIDE),
            pmui.Checkbox.from_param(parameters.scaled, margin=(8, 10), **WIDE),
            pmui.Row(discover, cancel, **WIDE),
            bar,
            pmui.Typography(parameters.message, variant="body2", **WIDE),
            pmui.Alert(object=parameters.error, severity="error", visible=parameters.error.rx() != "", margin=10, **WIDE),
        ]

    # -- main area

    def main(self) -> list[pn.viewable.Viewable]:
        found = self.state.param.found
        there = found.rx().rx.is_not(None)
        return [
            pmui.Markdown(INTRODUCTION, margin=(10, 30), visible=there.rx.not_(), **WIDE),
            pmui.Column(pn.pane.HTML(pn.bind(words.facts, found), margin=(10, 8), **WIDE), margin=0, visible=there, **WIDE),
            pmui.Grid(
                pmui.Grid(self._graph(), size={"xs": 12, "lg": 8}),
                pmui.Grid(self._explanation(), size={"xs": 12, "lg": 4}),
                pmui.Grid(self._random(), size={"xs": 12, "lg": 6}),
                pmui.Grid(self._broken(), size={"xs": 12, "lg": 6}),
                pmui.Grid(self._table(words.factors, shown=self.state.param.has_factors), size={"xs": 12, "lg": 6}),
                pmui.Grid(self._table(words.pinned), size={"xs": 12, "lg": 6}),
                pmui.Grid(self._table(words.scalings, shown=self.state.param.has_scalings), size={"xs": 12}),
                container=True,
                spacing=0,
                **WIDE,
            ),
        ]

    def _graph(self) -> pn.viewable.Viewable:
        state = self.state
        pane = pn.pane.HoloViews(linked_axes=False, **WIDE)

        def draw(*events: Any) -> None:
            found = state.found
            if found is None:
                pane.object = None
                return
            chosen = None if state.selected == EVERYTHING else state.selected
            graph = PLOTS["symmetry_graph"](found.symmetry.groups, found.axes, selected=chosen)
            self._select_on_tap(graph)
            pane.object = graph

        state.param.watch(draw, ["found", "selected"])
        box = pn.Column(pane, styles={"overflow": "auto", "max-height": f"{TALLEST}px"}, margin=0, **WIDE)
        return self._card(pmui.Typography(CAPTION, variant="caption", margin=(2, 14), **WIDE), box)

    def _select_on_tap(self, graph: hv.Overlay) -> None:
        """A click on a factor selects it."""
        state = self.state
        points = next(element for element in graph if isinstance(element, hv.Points))
        names = list(points.dimension_values("factor"))

        def select(index: list[int]) -> None:
            if index and names[index[0]] != state.selected:
                state.selected = names[index[0]]

        hv.streams.Selection1D(source=points).add_subscriber(select)

    def _explanation(self) -> pn.viewable.Viewable:
        parameters = self.state.param
        text = pn.pane.HTML(pn.bind(words.explanation, parameters.explanation), margin=(0, 14, 10, 14), **WIDE)
        box = pn.Column(text, styles={"overflow": "auto", "max-height": "440px"}, margin=0, **WIDE)
        return self._card(pmui.Select.from_param(parameters.selected, margin=(8, 10), **WIDE), box)

    def _random(self) -> pn.viewable.Viewable:
        state = self.state
        button = self._action("Apply a random element", icon="shuffle", color="primary")
        button.on_click(lambda event: state.apply_random())
        controls = pmui.FlexBox(pmui.IntInput.from_param(state.param.seed, width=120, margin=(8, 10)), button)
        return self._card(controls, *self._change(state.param.kept), shown=state.param.movable)

    def _broken(self) -> pn.viewable.Viewable:
        state = self.state
        button = self._action("Break it", icon="link_off", color="warning")
        button.on_click(lambda event: state.break_it())
        controls = pmui.FlexBox(pmui.Select.from_param(state.param.tied, width=330, margin=(8, 10)), button)
        hint = pmui.Typography(HINT, variant="caption", margin=(2, 14), visible=state.param.broken.rx().rx.is_(None), **WIDE)
        return self._card(controls, hint, *self._change(state.param.broken), shown=state.param.has_factors)

    def _action(self, label: str, **options: str) -> pmui.Button:
        return pmui.Button(label=label, variant="outlined", disabled=self.state.param.acting, margin=(14, 10), **options)

    def _change(self, parameter: Any) -> tuple[pn.viewable.Viewable, pn.viewable.Viewable]:
        """In words and drawn: the outputs before and after."""
        state = self.state
        pane = pn.pane.HoloViews(**WIDE)

        def draw(*events: Any) -> None:
            change = getattr(state, parameter.name)
            pane.object = None if change is None else PLOTS["output_change"](change.outputs).opts(height=300)

        state.param.watch(draw, [parameter.name])
        return pn.pane.HTML(pn.bind(words.change, state.param.found, parameter), margin=(0, 14), **WIDE), pane

    def _table(self, write: Callable[[Any], str], shown: Any = None) -> pn.viewable.Viewable:
        table = pn.pane.HTML(pn.bind(write, self.state.param.found), margin=(0, 14, 10, 14), **WIDE)
        box = pn.Column(table, styles={"overflow": "auto", "max-height": f"{TALLEST}px"}, margin=0, **WIDE)
        return self._card(box, shown=shown)

    def _card(self, *children: Any, shown: Any = None) -> pn.viewable.Viewable:
        """A box that is there once its parameter has a value (default: once something was discovered)."""
        parameter = self.state.param.found if shown is None else shown
        visible = parameter.rx().rx.pipe(lambda value: value is not None and value is not False)
        return pmui.Paper(*children, variant="outlined", elevation=0, margin=6, visible=visible, sx={"pt": 1}, **WIDE)
