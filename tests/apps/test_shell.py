"""The frame: a page per file, a session that leaves nothing behind, results in order and silent after the end."""

from __future__ import annotations

import gc
import socket
import weakref

import pytest

from workbench.errors import WorkbenchError
from workbench.shipped.apps.dispatch import Dispatcher
from workbench.shipped.apps.jobs import Jobs
from workbench.shipped.apps.pages import PAGES, Session
from workbench.shipped.apps.server import start
from workbench.shipped.apps.settings import Settings
from workbench.shipped.apps.shell import Shell


class Document:
    """Takes callbacks for the next tick, as Bokeh's does, and runs them when told to."""

    def __init__(self) -> None:
        self.ticks: list = []

    def add_next_tick_callback(self, function) -> None:
        self.ticks.append(function)

    def tick(self) -> None:
        self.ticks.pop(0)()


def test_pages_are_found():
    assert "compare" in set(PAGES)
    assert PAGES.entry("compare").summary


def test_a_session_that_ended_leaves_nothing_behind():
    shell = Shell(Session(Jobs(), Settings()))
    held = [weakref.ref(shell.page), weakref.ref(shell)]
    del shell
    gc.collect()
    assert [ref() for ref in held] == [None, None]


def test_results_arrive_in_order_one_a_tick():
    document, seen = Document(), []
    dispatch = Dispatcher(document)
    for i in range(3):
        dispatch(lambda i=i: seen.append(i))
    assert len(document.ticks) == 1
    document.tick()
    assert seen == [0]
    document.tick()
    document.tick()
    assert seen == [0, 1, 2]
    assert not document.ticks


def test_one_broken_view_does_not_swallow_the_rest(caplog):
    document, seen = Document(), []
    dispatch = Dispatcher(document)
    dispatch(lambda: 1 / 0)
    dispatch(lambda: seen.append("after"))
    document.tick()
    document.tick()
    assert seen == ["after"]
    assert "could not be shown" in caplog.text


def test_nothing_is_dispatched_after_the_end():
    document, seen = Document(), []
    dispatch = Dispatcher(document)
    dispatch(lambda: seen.append(1))
    dispatch.close()
    document.tick()
    dispatch(lambda: seen.append(2))
    assert not seen
    assert not document.ticks
    dispatch = Dispatcher(object())  # a document that was taken apart has no such method
    dispatch(lambda: seen.append(3))
    assert not seen


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(WorkbenchError, match="cannot be opened"):
            start(taken.getsockname()[1])
