"""The form of a matcher as widgets: folded up, with what is wrong and what the matcher looks at always in sight."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
import param

from .matcher_form import LONGEST, MatcherForm, needs_words

WIDE: dict[str, Any] = {"sizing_mode": "stretch_width"}


def form_card(state: Any) -> pn.viewable.Viewable:
    """The fields of ``state.form``, made anew when another matcher is chosen; ``state.task`` is said where data are needed."""
    fold = pmui.Accordion(active=[], title_variant="body1", margin=(4, 10), **WIDE)
    error = pmui.Alert(severity="error", margin=(4, 10), visible=False, **WIDE)
    about = pmui.Typography(variant="caption", margin=(0, 14), **WIDE)
    watched: list[MatcherForm] = []

    def show(*events: Any) -> None:
        form = state.form
        error.param.update(object=form.error, visible=bool(form.error))
        about.object = (f"{form.changed}. " if form.changed else "") + needs_words(form.needs, state.task)

    def renew(*events: Any) -> None:
        form = state.form
        cells = [pmui.Grid(widget(form, name), size=6) for name in form.fields]
        fold[:] = [(f"Settings of {form.matcher}", pmui.Grid(*cells, container=True, spacing=0, **WIDE))]
        fold.visible = bool(cells)
        if form not in watched:
            watched.append(form)
            form.param.watch(show, ["error", "needs", "changed"])
        show()

    state.param.watch(renew, "form")
    state.param.watch(show, "task")
    renew()
    return pmui.Column(fold, error, about, margin=0, **WIDE)


def widget(form: MatcherForm, name: str) -> pn.viewable.Viewable:
    """A checkbox, a list or a line of text for one field, with its meaning as a tip."""
    parameter, help = form.values.param[name], form.fields[name].help
    shared: dict[str, Any] = {"margin": (6, 6), "size": "small", **({"description": help} if help else {}), **WIDE}
    if isinstance(parameter, param.Boolean):
        return pmui.Checkbox.from_param(parameter, **shared)
    if isinstance(parameter, param.Selector):
        return pmui.Select.from_param(parameter, **shared)
    return pmui.TextInput.from_param(parameter, max_length=LONGEST, **shared)
