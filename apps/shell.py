"""The frame around the pages: title, dark mode, navigation where there is more than one page, and the session's end."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui

from .dispatch import Dispatcher
from .jobs import Jobs
from .pages import PAGES, Parts, Session
from .settings import Settings

TITLE = "Workbench"
THEME = {"palette": {"primary": {"main": "#1f6fb2"}}, "shape": {"borderRadius": 6}}

# White words on the coloured bar of both themes; the theme's own colours are more specific.
NAVIGATION = {
    "& .MuiToggleButton-root": {"borderColor": "rgba(255,255,255,.5) !important", "textTransform": "none", "fontSize": 15},
    "& .MuiToggleButton-root:not(.Mui-selected)": {"color": "white !important"},
}


class Shell:
    """One session's window. Pages are built when first shown and kept until the session ends."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._built: dict[str, Parts] = {}
        names = list(PAGES)
        self.page = pmui.Page(
            title=TITLE,
            sidebar_width=330,
            main_width=None,
            theme_config=THEME,
            busy_indicator=None,
        )
        _leave_busy_flag(self.page)
        if len(names) > 1:
            first = _asked(session.location, names)
            options = {name.capitalize(): name for name in names}
            choice = pmui.RadioButtonGroup(label="", options=options, value=first, size="small", sx=NAVIGATION)
            choice.param.watch(lambda event: self.show(event.new), "value")
            self.page.header = [choice]
            self.show(first)
        else:
            self.show(names[0])

    def show(self, name: str) -> None:
        if name not in self._built:
            self._built[name] = PAGES[name](self._session)
        self.page.param.update(sidebar=self._built[name].sidebar, main=self._built[name].main)
        if self._session.location is not None:
            self._session.location.update_query(page=name)


def _asked(location: Any, names: list[str]) -> str:
    """The page that the address names (``?page=symmetries``), else the first."""
    asked = (location.query_params if location is not None else {}).get("page")
    return asked if asked in names else names[0]


def _leave_busy_flag(page: pmui.Page) -> None:
    """Stop the page from following the process-wide busy flag.

    That watcher would keep every closed session alive, and one visitor's work would light up in all windows.
    """
    for watcher in list(pn.state.param.watchers.get("busy", {}).get("value", ())):
        if getattr(getattr(watcher.fn, "__self__", None), "self", None) is page:
            pn.state.param.unwatch(watcher)


def new_session(settings: Settings) -> pmui.Page:
    """The page for a visitor who just arrived. Closing the tab cancels whatever still runs for it."""
    dispatch = Dispatcher(pn.state.curdoc)
    jobs = Jobs(dispatch)

    def end(_context: object) -> None:
        jobs.close()
        dispatch.close()

    pn.state.on_session_destroyed(end)
    return Shell(Session(jobs, settings, pn.state.location)).page
