"""The job runner: results in order, cancel at the next step, latest-wins, errors as values, nothing after the session's end."""

from __future__ import annotations

import gc
import queue
import threading
import weakref

import pytest

from workbench.errors import Cancelled, WorkbenchError
from workbench.progress import Reporter
from workbench.shipped.apps.jobs import Job, Jobs


@pytest.fixture
def jobs():
    runner = Jobs()
    yield runner
    runner.close()


def test_steps_come_before_the_result_and_none_is_lost(jobs):
    seen: list = []

    def work(job: Job) -> str:
        reporter = Reporter(job.progress, "counting", total=50)
        for i in range(50):
            reporter.step(i=i)
        return "done"

    jobs.start("a", work, on_steps=lambda steps: seen.extend(step.values["i"] for step in steps), on_result=seen.append)
    assert jobs.wait()
    assert seen == [*range(50), "done"]


def test_progress_is_delivered_in_few_batches(jobs):
    batches: list[int] = []

    def work(job: Job) -> None:
        reporter = Reporter(job.progress, "counting", total=10_000)
        for _ in range(10_000):
            reporter.step()

    jobs.start("a", work, on_steps=lambda steps: batches.append(len(steps)))
    assert jobs.wait()
    assert sum(batches) == 10_000
    assert len(batches) < 1_000


def test_cancel_stops_at_the_next_step_and_tells_once(jobs):
    started, outcome, done = threading.Event(), [], []

    def work(job: Job) -> None:
        reporter = Reporter(job.progress, "waiting")
        started.set()
        while True:
            threading.Event().wait(0.001)
            reporter.step()
            done.append(reporter.done)

    jobs.start("a", work, on_cancel=lambda: outcome.append("cancelled"), on_result=outcome.append, on_error=outcome.append)
    assert started.wait(10)
    jobs.cancel("a")
    assert jobs.wait()
    assert outcome == ["cancelled"]


def test_work_that_keeps_its_best_so_far_ends_in_a_result(jobs):
    started, outcome = threading.Event(), []

    def work(job: Job) -> str:
        reporter = Reporter(job.progress, "matching")
        started.set()
        try:
            while True:
                threading.Event().wait(0.001)
                reporter.step()
        except Cancelled:
            return "best so far"

    jobs.start("a", work, on_result=outcome.append, on_cancel=lambda: outcome.append("nothing"))
    assert started.wait(10)
    jobs.cancel()
    assert jobs.wait()
    assert outcome == ["best so far"]


def test_thirty_starts_cost_two_runs_and_the_last_wins(jobs):
    gate, runs, shown = threading.Event(), [], []

    def work_for(value: int):
        def work(job: Job) -> int:
            runs.append(value)
            gate.wait(10)
            return value

        return work

    for value in range(30):
        jobs.start("slider", work_for(value), on_result=shown.append)
    gate.set()
    assert jobs.wait()
    assert shown == [29]
    assert runs[-1] == 29
    assert len(runs) <= 2


def test_lanes_do_not_disturb_each_other(jobs):
    gate, shown = threading.Event(), []
    jobs.start("slow", lambda job: gate.wait(10), on_result=lambda value: shown.append("slow"))
    jobs.start("fast", lambda job: 1, on_result=lambda value: (shown.append("fast"), gate.set()))
    assert jobs.wait()
    assert shown == ["fast", "slow"]


def test_an_error_is_a_value_without_frames(jobs):
    errors = []

    def work(job: Job) -> None:
        raise WorkbenchError("no such thing", next_step="look elsewhere")

    jobs.start("a", work, on_error=errors.append, on_result=errors.append)
    assert jobs.wait()
    assert str(errors[0]) == "no such thing. Next: look elsewhere."
    assert errors[0].__traceback__ is None


def test_everything_is_dispatched_from_the_session_thread():
    calls: queue.Queue = queue.Queue()
    runner, threads = Jobs(calls.put), []
    runner.start("a", lambda job: 1, on_result=lambda value: threads.append(threading.current_thread()))
    assert runner.wait()
    assert not threads  # nothing happened on the worker
    calls.get_nowait()()
    assert threads == [threading.current_thread()]


def test_nothing_is_delivered_after_the_end_and_nothing_is_kept_alive():
    class Model:
        pass

    model, started, shown = Model(), threading.Event(), []
    seen = weakref.ref(model)
    runner = Jobs()

    def work(job: Job, held: Model = model) -> Model:
        started.set()
        reporter = Reporter(job.progress, "waiting")
        while True:
            threading.Event().wait(0.001)
            reporter.step()

    runner.start("a", work, on_result=shown.append, on_cancel=lambda: shown.append("cancelled"))
    assert started.wait(10)
    runner.close()
    assert runner.wait()
    assert not shown
    del model, work
    for _ in range(200):  # the worker thread lets go of the function a moment after it reported the end
        gc.collect()
        if seen() is None:
            break
        threading.Event().wait(0.01)
    assert seen() is None
