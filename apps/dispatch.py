"""From a worker thread back into a session: in order, under the document's lock, and silent once the session is gone."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from bokeh.document import Document

log = logging.getLogger(__name__)


class Dispatcher:
    """Callable from any thread: queues a function and runs it on a later tick of the session, after those queued before."""

    def __init__(self, document: Document) -> None:
        self._document: Document | None = document
        self._queue: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._scheduled = False

    def __call__(self, function: Callable[[], None]) -> None:
        with self._lock:
            if self._document is None:
                return
            self._queue.append(function)
            if self._scheduled:
                return
            self._scheduled = True
        self._schedule()

    def _schedule(self) -> None:
        document = self._document
        try:
            if document is not None:
                document.add_next_tick_callback(self._run_one)
        except (AttributeError, RuntimeError):  # Bokeh takes a document apart while a late worker still reports
            self.close()

    def _run_one(self) -> None:
        """One function per tick: drawing takes tenths of a second, and between two of them other visitors are served."""
        with self._lock:
            function = self._queue.popleft() if self._queue else None
        try:
            if function is not None:
                function()
        except Exception:
            # One broken view must not swallow the results behind it.
            log.exception("a result could not be shown")
        with self._lock:
            self._scheduled = bool(self._queue)
        if self._scheduled:
            self._schedule()

    def close(self) -> None:
        """The session is over: drop what waits and the document with it."""
        with self._lock:
            self._document = None
            self._queue.clear()
