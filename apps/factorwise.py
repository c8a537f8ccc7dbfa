"""An alignment applied factor by factor: the curve of every part that was asked for, measured once and kept."""

from __future__ import annotations

from collections.abc import Callable

import xarray as xr

from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.progress import Step

from .jobs import Job, Jobs
from .road import Found

LANE = "factors"
Names = tuple[str, ...]


class Factorwise:
    """The parts of one alignment. ``curves``: names of the factors applied -> the finished profile to the moving model so moved.

    on_points: progress of the curve being measured; on_curve: a curve is finished; on_step: a walk reached these factors;
    on_error: it failed. All run in the session.
    """

    def __init__(
        self,
        jobs: Jobs,
        found: Found,
        *,
        on_points: Callable[[list[Step]], None],
        on_curve: Callable[[Names], None],
        on_step: Callable[[Names], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._jobs, self._found = jobs, found
        self._on_points, self._on_curve, self._on_step, self._on_error = on_points, on_curve, on_step, on_error
        self.names: Names = tuple(found.symmetry.groups)
        self.curves: dict[Names, xr.Dataset] = {}

    def is_part(self, names: Names) -> bool:
        """Whether some factors are applied and some are not."""
        return 0 < len(names) < len(self.names)

    def words(self, names: Names) -> str:
        """ "none (naive)", "all (aligned)", or the names."""
        if not names:
            return "none (naive)"
        return "all (aligned)" if len(names) == len(self.names) else " + ".join(names)

    def path(self, names: Names) -> LinearPath:
        """The straight path to the moving model with only the factors in ``names`` applied."""
        found = self._found
        element = found.alignment.element.restrict(names)
        return LinearPath(found.loaded.anchor, found.symmetry.apply(element, found.loaded.moving))

    def measure(self, names: Names) -> None:
        """Measure the curve of one part."""
        self._start([names], lambda job, _: None, names)

    def walk(self) -> None:
        """Apply the factors one after another, from none to all; curves that are known are not measured again."""
        parts = [self.names[:count] for count in range(1, len(self.names))]
        self._start(parts, lambda job, names: job.emit(self._on_step, names), self.names)

    def drop(self) -> None:
        """Stop what is being measured, and say nothing more of it."""
        self._jobs.drop(LANE)

    def _start(self, parts: list[Names], before: Callable[[Job, Names], None], last: Names) -> None:
        loaded, grid, known = self._found.loaded, self._found.choice.grid, set(self.curves)

        def work(job: Job) -> None:
            for names in parts:
                before(job, names)
                if names in known:
                    continue
                profile = profile_path(
                    self.path(names),
                    loaded.model,
                    loaded.task,
                    points=grid,
                    splits=tuple(loaded.task.splits),
                    progress=job.progress,
                )
                job.flush()
                job.emit(self._keep, names, profile)

        self._jobs.start(
            LANE, work, on_steps=self._on_points, on_result=lambda _: self._on_step(last), on_error=self._on_error
        )

    def _keep(self, names: Names, profile: xr.Dataset) -> None:
        self.curves[names] = profile
        self._on_curve(names)
