"""From a worker thread back into a session: in order, under the document's lock, and silent once the session is gone."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from bokeh.document import Document

log = logging.getLogger(__name__)


class Dispatcher:
    """Callable from any thread: queues a function and runs it on the session's next tick, together with what else waits."""

    def __init__(self, document: Document) -> None:
        self._document: Document | None = document
        self._queue: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._scheduled = False

    def __call__(self, function: Callable[[], None]) -> None:
        with self._lock:
            document = self._document
            if document is None:
                return
            self._queue.append(function)
            if self._scheduled:
                return
            self._scheduled = True
        try:
            document.add_next_tick_callback(self._drain)
        except (AttributeError, RuntimeError):  # Bokeh takes a document apart while a late worker still reports
            self.close()

    def _drain(self) -> None:
        with self._lock:
            functions = list(self._queue)
            self._queue.clear()
            self._scheduled = False
        for function in functions:
            try:
                function()
            except Exception:
                # One broken view must not swallow the results behind it.
                log.exception("a result could not be shown")

    def close(self) -> None:
        """The session is over: drop what waits and the document with it."""
        with self._lock:
            self._document = None
            self._queue.clear()
