"""Long work off the event loop: one thread pool for the process, one ``Jobs`` per session, latest-wins, ordered results.

A job is a function of one argument, its ``Job``. It passes ``job.progress`` to the public function it calls, and may hand over
partial results with ``job.emit``. Everything that touches the session (progress, results, errors) runs through the session's
``dispatch``, in order, on the thread that owns the document; the worker itself never changes state.

A *lane* runs one job at a time. A new job in a busy lane cancels the running one and replaces whatever was waiting: a slider
dragged through thirty values costs the first and the last. What a superseded job still says is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from workbench.errors import Cancelled
from workbench.progress import Step

Dispatch = Callable[[Callable[[], None]], None]

# Results are numbers and state dicts, and torch and scipy release the interpreter lock: threads do, and a started process
# would import torch again for every worker.
POOL = ThreadPoolExecutor(max_workers=4, thread_name_prefix="workbench")
# Seconds between two progress deliveries of one job; steps in between are collected, not lost. Drawing a figure costs the
# session's thread ~0.15 s, so more often would only starve the worker.
PROGRESS_INTERVAL = 0.25


class Job:
    """What a worker holds: the cancel token, the progress callback and the way back to the session."""

    def __init__(self, jobs: Jobs, lane: str, on_steps: Callable[[list[Step]], None] | None) -> None:
        self._jobs, self._lane, self._on_steps = jobs, lane, on_steps
        self._stop = threading.Event()
        self._waiting: list[Step] = []
        self._last = 0.0
        self._delivering = False  # a delivery is on its way: a session that is slow to draw gets fewer and larger ones
        self.superseded = False

    @property
    def cancelled(self) -> bool:
        return self._stop.is_set()

    def cancel(self) -> None:
        """Ask the work to stop at its next step."""
        self._stop.set()

    def check(self) -> None:
        """Raise ``Cancelled`` once the job was cancelled; for the moments between two public functions."""
        if self.cancelled:
            raise Cancelled

    def say(self, stage: str) -> None:
        """Tell the session that another stage begins."""
        self.progress(Step(stage, 0, None, 0.0))

    def progress(self, step: Step) -> None:
        """The ``Progress`` callback for the function being run: raises ``Cancelled`` once the job was cancelled."""
        self._waiting.append(step)
        now = time.monotonic()
        if now - self._last >= PROGRESS_INTERVAL and not self._delivering:
            self._last = now
            self.flush()
        if self.cancelled:
            raise Cancelled(step.stage)

    def flush(self) -> None:
        """Hand over the steps collected so far."""
        steps, self._waiting = self._waiting, []
        if steps and self._on_steps is not None:
            self._delivering = True
            self.emit(self._deliver, steps)

    def _deliver(self, steps: list[Step]) -> None:
        self._delivering = False
        self._on_steps(steps)

    def emit(self, callback: Callable[..., None], *values: Any) -> None:
        """Run ``callback(*values)`` in the session, after everything emitted before; nothing happens once superseded."""
        self._jobs.deliver(self, callback, values)


class Jobs:
    """The jobs of one session.

    dispatch: runs a function on the thread that owns the session's state; the default runs it at once, for scripts and tests.
    """

    def __init__(self, dispatch: Dispatch | None = None) -> None:
        self._dispatch = dispatch or (lambda function: function())
        self._lock = threading.Lock()
        self._running: dict[str, Job] = {}
        self._waiting: dict[str, tuple[Job, Callable[[], None]]] = {}
        self._idle = threading.Condition(self._lock)
        self._closed = False

    def start(
        self,
        lane: str,
        work: Callable[[Job], Any],
        *,
        on_result: Callable[[Any], None] | None = None,
        on_steps: Callable[[list[Step]], None] | None = None,
        on_cancel: Callable[[], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> Job:
        """Run ``work(job)`` in ``lane``; one of on_result, on_cancel and on_error follows, unless superseded or closed."""
        job = Job(self, lane, on_steps)

        def run() -> None:
            try:
                if job.cancelled:
                    raise Cancelled
                outcome, values = on_result, (work(job),)
            except Cancelled:
                outcome, values = on_cancel, ()
            except Exception as error:
                # Frames of a failed job would keep its tensors alive for as long as the error is shown.
                outcome, values = on_error, (error.with_traceback(None),)
            finally:
                job.flush()
            if outcome is not None:
                job.emit(outcome, *values)
            self._finish(lane)

        with self._lock:
            if self._closed:
                return job
            if lane in self._running:
                self._supersede(self._running[lane])
                if lane in self._waiting:
                    self._supersede(self._waiting[lane][0])
                self._waiting[lane] = (job, run)
                return job
            self._running[lane] = job
        POOL.submit(run)
        return job

    @staticmethod
    def _supersede(job: Job) -> None:
        job.superseded = True
        job.cancel()

    def _finish(self, lane: str) -> None:
        with self._lock:
            following = self._waiting.pop(lane, None)
            if following is None:
                self._running.pop(lane, None)
                self._idle.notify_all()
            else:
                self._running[lane] = following[0]
        if following is not None:
            POOL.submit(following[1])

    def deliver(self, job: Job, callback: Callable[..., None], values: tuple[Any, ...]) -> None:
        """Dispatch ``callback`` unless the session is gone; whether ``job`` was superseded is asked at delivery time."""

        def run() -> None:
            if not (job.superseded or self._closed):
                callback(*values)

        if not self._closed:
            self._dispatch(run)

    def cancel(self, lane: str | None = None) -> None:
        """Ask the job of ``lane`` (default: of every lane) to stop; on_cancel follows, or on_result with the best so far."""
        with self._lock:
            for name, job in self._running.items():
                if lane is None or name == lane:
                    job.cancel()
            for name, (job, _) in self._waiting.items():
                if lane is None or name == lane:
                    job.cancel()

    def drop(self, lane: str) -> None:
        """Cancel what runs or waits in ``lane`` and deliver nothing more of it, not even what is on its way."""
        with self._lock:
            waiting = self._waiting.pop(lane, None)
            for job in (self._running.get(lane), waiting[0] if waiting else None):
                if job is not None:
                    self._supersede(job)

    def busy(self, lane: str) -> bool:
        with self._lock:
            return lane in self._running

    def wait(self, timeout: float = 60.0) -> bool:
        """Block until no lane is busy; False after ``timeout`` seconds. For scripts and tests, never on the event loop."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._running, timeout)

    def close(self) -> None:
        """End of the session: cancel everything, deliver nothing more."""
        self._closed = True
        self.cancel()
