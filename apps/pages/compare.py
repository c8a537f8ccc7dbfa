"""*Compare*: two checkpoints, aligned and explained. Widgets bound to ``CompareState``, plots bound to what it found."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import holoviews as hv
import panel as pn
import panel_material_ui as pmui

from workbench.plots import PLOTS
from workbench.plots.profile import position_mark
from workbench.plots.report import comparison_figures, report_html

from .. import alignment_words, matcher_widgets
from .. import compare_words as words
from ..states.compare import CompareState
from . import Parts, Session, page

INTRODUCTION = """
## Are two trained networks the same solution, up to the symmetries of their architecture?

Choose two checkpoints of one architecture and press **Align**. You will see

1. the permutation symmetries of the architecture, discovered from the model itself and proved by test,
2. the moving model's units matched to the anchor's, and the check that its function was kept,
3. the loss along the straight path between the two, before and after, and with any part of the alignment,
4. which singular directions of the weights met, beside what unrelated networks give.

The shipped networks take a few seconds.
"""

WIDE: dict[str, Any] = {"sizing_mode": "stretch_width"}
HALF, FULL = {"xs": 12, "lg": 6}, {"xs": 12}


@page("compare")
def compare(session: Session) -> Parts:
    """Two checkpoints: align, curves, factor by factor, singular vectors, report."""
    view = CompareView(CompareState(session.jobs, session.settings))
    return Parts(view.sidebar(), view.main())


class CompareView:
    """The widgets and figures of one visitor's comparison."""

    def __init__(self, state: CompareState) -> None:
        self.state = state

    # -- side bar

    def sidebar(self) -> list[pn.viewable.Viewable]:
        state, parameters = self.state, self.state.param
        running = parameters.status.rx() == "running"
        align = pmui.Button(label="Align", icon="play_arrow", color="primary", variant="contained", disabled=running, **WIDE)
        align.on_click(lambda event: state.align())
        cancel = pmui.Button(label="Cancel", icon="stop", color="error", variant="outlined", disabled=running.rx.not_(), **WIDE)
        cancel.on_click(lambda event: state.cancel())
        resume = pmui.Button(label="Continue", icon="redo", variant="outlined", visible=parameters.can_resume, **WIDE)
        resume.on_click(lambda event: state.resume())
        fraction = parameters.fraction.rx()
        bar = pmui.LinearProgress(
            value=fraction.rx.pipe(lambda share: round(100 * (share or 0))),
            variant=fraction.rx.pipe(lambda share: "indeterminate" if share is None else "determinate"),
            visible=running,
            **WIDE,
        )
        download = pmui.FileDownload(
            label="Report",
            filename="report.html",
            callback=self.report,
            variant="outlined",
            icon="download",
            disabled=parameters.status.rx() != "done",
            **WIDE,
        )
        return [
            pmui.Select.from_param(parameters.anchor, margin=(20, 10, 8, 10), **WIDE),
            *(pmui.Select.from_param(parameters[name], margin=(8, 10), **WIDE) for name in ("moving", "task", "matcher")),
            matcher_widgets.form_card(state),
            pmui.Select.from_param(parameters.start, margin=(8, 10), visible=parameters.kept.rx.pipe(bool), **WIDE),
            pmui.Row(
                pmui.IntInput.from_param(parameters.seed, margin=(8, 10), **WIDE),
                pmui.IntInput.from_param(parameters.points, step=2, margin=(8, 10), **WIDE),
                **WIDE,
            ),
            pmui.Row(align, cancel, **WIDE),
            resume,
            bar,
            pmui.Typography(parameters.message, variant="body2", **WIDE),
            pmui.Alert(object=parameters.error, severity="error", visible=parameters.error.rx() != "", margin=10, **WIDE),
            download,
        ]

    # -- main area

    def main(self) -> list[pn.viewable.Viewable]:
        state = self.state
        begun = state.param.found.rx().rx.is_not(None)
        facts = pn.pane.HTML(pn.bind(words.facts, state.param.found, state.param.barriers), margin=(10, 8), **WIDE)
        return [
            pmui.Markdown(INTRODUCTION, margin=(10, 30), visible=begun.rx.not_(), **WIDE),
            pmui.Column(facts, margin=0, visible=begun, **WIDE),
            self._alignments(),
            pmui.Grid(
                pmui.Grid(self._curves(), size={"xs": 12, "lg": 8}),
                pmui.Grid(self._position(), self._factors(), size={"xs": 12, "lg": 4}),
                pmui.Grid(self._permutation(), size=HALF),
                pmui.Grid(self._history(), size=HALF),
                pmui.Grid(self._agreement(), size=HALF),
                pmui.Grid(self._singular_values(), size=HALF),
                container=True,
                spacing=0,
                **WIDE,
            ),
        ]

    def _alignments(self) -> pn.viewable.Viewable:
        """The alignments of this pair side by side, and which of them the figures are about."""
        state, parameters = self.state, self.state.param
        running = parameters.status.rx() == "running"
        remove = pmui.Button(label="Remove", icon="delete", variant="text", size="small", margin=(18, 10), disabled=running)
        remove.on_click(lambda event: state.remove())
        controls = pmui.FlexBox(
            pmui.Select.from_param(parameters.shown, width=240, disabled=running),
            remove,
            pmui.CheckBoxGroup.from_param(
                parameters.overlaid, inline=True, size="small", margin=(16, 10), visible=parameters.kept.rx.pipe(_several)
            ),
        )
        lines = pn.bind(alignment_words.table, parameters.lines, parameters.shown, parameters.definition)
        shown = parameters.kept.rx.pipe(bool)
        table = pn.pane.HTML(lines, margin=(0, 10, 8, 10), styles={"overflow-x": "auto"}, **WIDE)
        return pmui.Paper(controls, table, variant="outlined", elevation=0, margin=6, visible=shown, sx={"pt": 1}, **WIDE)

    def _curves(self) -> pn.viewable.Viewable:
        state, height = self.state, 540
        pane = pn.pane.HoloViews(height=height, **WIDE)
        drawn: dict[str, Any] = {}

        def draw(data: Any, t: float) -> hv.Overlay:
            """The curves are built once for every new profile, so that a dragged slider only moves its mark."""
            if drawn.get("data") is not data:
                drawn["data"] = data
                look = alignment_words.legend(state.lines, state.shown)
                drawn["curves"] = PLOTS["profile"](data, metric=state.metric, log=state.log_axis, **look).opts(height=height)
            curves = drawn["curves"]
            return curves.clone([*curves, position_mark(t)])

        def renew(*events: Any) -> None:
            """New points stream into the figure that is there; another set of curves or another axis needs a new one."""
            profile = state.profile
            if profile is None:
                drawn.clear()
                pane.object = None
                return
            shape = (alignment_words.known(profile), state.metric, state.log_axis, state.shown, len(state.lines))
            if drawn.get("shape") != shape:
                drawn.update(shape=shape, data=None, pipe=hv.streams.Pipe(data=profile))
                pane.object = hv.DynamicMap(draw, streams=[drawn["pipe"], hv.streams.Params(parameters=[state.param.t])])
            else:
                drawn["pipe"].send(profile)

        state.param.watch(renew, ["profile", "metric", "log_axis", "shown", "lines"])
        controls = pmui.FlexBox(
            pmui.Select.from_param(state.param.metric, width=140),
            pmui.Select.from_param(state.param.definition, width=180),
            pmui.Checkbox.from_param(state.param.log_axis, margin=(18, 10), width=120),
        )
        return self._card(controls, pane, shown=state.param.profile)

    def _position(self) -> pn.viewable.Viewable:
        state = self.state
        return self._card(
            pmui.FloatSlider.from_param(state.param.t, margin=(5, 20, 0, 20), **WIDE),
            pn.pane.HTML(pn.bind(words.position, state.param.at), margin=(0, 10, 8, 10), **WIDE),
            shown=state.param.at,
        )

    def _factors(self) -> pn.viewable.Viewable:
        state = self.state
        walk = pmui.Button(label="One after another", icon="stairs", variant="text", size="small", margin=(0, 10))
        fall = pn.pane.HoloViews(margin=0, **WIDE)

        def draw(*events: Any) -> None:
            known = {name: values[state.metric] for name, values in state.steps.items() if state.metric in values}
            fall.object = PLOTS["barrier_steps"](known) if known else None

        state.param.watch(draw, ["steps", "metric"])
        walk.on_click(lambda event: state.one_by_one())
        return self._card(
            pmui.CheckBoxGroup.from_param(state.param.factors, margin=(8, 10, 0, 10), size="small", **WIDE),
            walk,
            fall,
            pn.pane.HTML(pn.bind(words.steps, state.param.steps, state.param.metric), margin=(0, 10, 8, 10), **WIDE),
            shown=state.param.aligned,
        )

    def _permutation(self) -> pn.viewable.Viewable:
        state = self.state
        return self._figure(
            lambda: PLOTS["permutation"](state.found.alignment.element.permutations[state.factor].numpy(), name=state.factor),
            state.param.aligned,
            ["aligned", "factor"],
            pmui.Select.from_param(state.param.factor, width=260),
            height=400,
        )

    def _history(self) -> pn.viewable.Viewable:
        state = self.state
        return self._figure(
            lambda: PLOTS["matching_history"](state.found.alignment.history),
            state.param.aligned,
            ["aligned"],
            height=470,
        )

    def _agreement(self) -> pn.viewable.Viewable:
        state = self.state
        return self._figure(
            lambda: PLOTS["alignment_spectrum"](state.found.spectra, gamma=state.gamma),
            state.param.compared,
            ["compared", "gamma"],
            pmui.Select.from_param(state.param.gamma, width=260),
        )

    def _singular_values(self) -> pn.viewable.Viewable:
        state = self.state
        return self._figure(
            lambda: PLOTS["singular_values"](state.found.spectra, layer=state.layer, gamma=state.gamma, log=True),
            state.param.compared,
            ["compared", "gamma", "layer"],
            pmui.Select.from_param(state.param.layer, width=260),
        )

    def _figure(
        self, plot: Callable[[], Any], ready: Any, depends: list[str], *controls: Any, height: int = 340
    ) -> pn.viewable.Viewable:
        """A card whose figure is drawn again when one of ``depends`` changes, once ``ready`` is true."""
        state = self.state
        pane = pn.pane.HoloViews(**WIDE)

        def draw(*events: Any) -> None:
            pane.object = plot().opts(height=height) if getattr(state, ready.name) else None

        state.param.watch(draw, depends)
        return self._card(*controls, pane, shown=ready)

    def _card(self, *children: Any, shown: Any) -> pn.viewable.Viewable:
        """A box that is there once its parameter has a value."""
        visible = shown.rx().rx.pipe(lambda value: value is not None and value is not False)
        return pmui.Paper(*children, variant="outlined", elevation=0, margin=6, visible=visible, sx={"pt": 1}, **WIDE)

    # -- report

    def report(self) -> io.BytesIO:
        """``report.html`` of the finished comparison."""
        found = self.state.found
        title = f"{found.choice.moving} against {found.choice.anchor}"
        summary = found.comparison.summary() | alignment_words.summary(self.state.lines)
        return io.BytesIO(report_html(summary, comparison_figures(found.comparison), title).encode())


def _several(kept: Any) -> bool:
    return len(kept) > 1
