"""The frame around the pages: title, dark mode, navigation where there is more than one page, and the session's end."""

from __future__ import annotations

import panel as pn
import panel_material_ui as pmui

from .dispatch import Dispatcher
from .jobs import Jobs
from .pages import PAGES, Parts, Session
from .settings import Settings

TITLE = "Workbench"
THEME = {"palette": {"primary": {"main": "#1f6fb2"}}, "shape": {"borderRadius": 6}}


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
        if len(names) > 1:
            choice = pmui.RadioButtonGroup(label="Instrument", options=names, value=names[0])
            choice.param.watch(lambda event: self.show(event.new), "value")
            self.page.header = [choice]
        self.show(names[0])

    def show(self, name: str) -> None:
        if name not in self._built:
            self._built[name] = PAGES[name](self._session)
        self.page.sidebar[:] = self._built[name].sidebar
        self.page.main[:] = self._built[name].main


def new_session(settings: Settings) -> pmui.Page:
    """The page for a visitor who just arrived. Closing the tab cancels whatever still runs for it."""
    dispatch = Dispatcher(pn.state.curdoc)
    jobs = Jobs(dispatch)

    def end(_context: object) -> None:
        jobs.close()
        dispatch.close()

    pn.state.on_session_destroyed(end)
    return Shell(Session(jobs, settings, pn.state.location)).page
