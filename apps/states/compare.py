"""What the *Compare* page shows and can do. Every action calls one public function in a worker; nothing is computed here.

Parameters are changed only by the session's own thread: by widgets, and by the functions the job runner dispatches.
"""

from __future__ import annotations

import param
import xarray as xr

from workbench.barriers import DEFINITIONS, barrier
from workbench.errors import WorkbenchError
from workbench.matching import MATCHERS
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.progress import Step

from .. import catalogue, road
from ..jobs import Job, Jobs
from ..live import LiveProfile
from ..settings import Settings

ALIGNMENTS = ("naive", "aligned", "partial")
CURVES = {"profile naive": "naive", "profile aligned": "aligned"}


class CompareState(param.Parameterized):
    """One visitor's comparison. ``jobs`` runs the work; ``settings`` says what may be chosen."""

    anchor = param.Selector(objects=[], label="Anchor (stays)")
    moving = param.Selector(objects=[], label="Moving (is permuted)")
    task = param.Selector(objects=[], label="Task")
    matcher = param.Selector(default="weights", objects=["weights"], label="Matcher")
    seed = param.Integer(default=0, bounds=(0, None), label="Seed")
    points = param.Integer(default=25, bounds=(3, 201), label="Points on the path")

    status = param.Selector(default="idle", objects=["idle", "running", "done", "stopped", "failed"])
    message = param.String(doc="What is happening, or how it ended, in one sentence.")
    error = param.String(doc="The text of the last error; empty where there was none.")
    can_resume = param.Boolean(default=False, doc="Whether there is something to go on with after a cancel or an error.")
    fraction = param.Number(default=None, allow_None=True, doc="Share of the current stage done, None where unknown.")

    found = param.Parameter(doc="road.Found of the current comparison, or None before the first.")
    profile = param.Parameter(doc="The curves so far: a Dataset over (alignment, split, t) with `measured`, or None.")

    metric = param.Selector(default="loss", objects=["loss"], label="Show")
    log_axis = param.Boolean(default=False, label="Log axis")
    definition = param.Selector(default="linear", objects=list(DEFINITIONS), label="Barrier definition")
    barriers = param.Dict(default={}, doc="alignment -> {metric -> DataArray over split}, of finished curves only.")

    t = param.Number(default=0.5, bounds=(0.0, 1.0), step=0.01, label="Position t")
    at = param.Parameter(doc="(t, {alignment -> Dataset at that t}), or None.")

    aligned = param.Boolean(default=False, doc="Whether there is an alignment to show.")
    factor = param.Selector(objects=[], label="Permutation of")
    compared = param.Boolean(default=False, doc="Whether there are singular vectors to show.")
    gamma = param.Selector(default=0.3, objects=list(road.GAMMA), label="Threshold γ")
    layer = param.Selector(objects=[], label="Singular values of")

    factors = param.ListSelector(default=[], objects=[], label="Factors applied")
    steps = param.Dict(default={}, doc="factors applied, in words -> {metric -> DataArray over split}.")

    def __init__(self, jobs: Jobs, settings: Settings, **params: object) -> None:
        super().__init__(**params)
        self._jobs, self._settings = jobs, settings
        self._live: LiveProfile | None = None
        self._stage = ""
        self._partial: dict[tuple[str, ...], xr.Dataset] = {}
        names = list(catalogue.checkpoints(settings))
        for which, index in (("anchor", 0), ("moving", 1)):
            self.param[which].objects = names
            setattr(self, which, names[min(index, len(names) - 1)] if names else None)
        self.param.task.objects = catalogue.tasks(settings)
        self.task = self.param.task.objects[0]
        self.param.matcher.objects = list(MATCHERS)

    # -- the road: align, then curves, then spectra

    def align(self) -> None:
        """Start from the current choices; a comparison under way is cancelled and replaced."""
        self._live = None
        self._partial = {}
        self._jobs.cancel("at")
        self._jobs.cancel("factors")
        self.param.update(
            found=None, profile=None, barriers={}, at=None, steps={}, factors=[], aligned=False, compared=False, error=""
        )
        self.param.factors.objects = []
        choice = road.Choice(self.anchor, self.moving, self.task, self.matcher, self.seed, self.points)
        self._start(road.Found(choice))

    def resume(self) -> None:
        """Go on after a cancel: the stages that are missing, with the alignment that was kept."""
        if self.can_resume:
            self.error = ""
            self._start(self.found)

    def cancel(self) -> None:
        """Ask everything that runs to stop at its next step."""
        if self.status == "running":
            self.message = "Stopping…"
        self._jobs.cancel()

    def _start(self, found: road.Found) -> None:
        self.param.update(status="running", message="Starting", fraction=None, can_resume=False)
        self._jobs.start(
            "road",
            lambda job: road.travel(job, self._settings, found, self._show),
            on_steps=self._progress,
            on_result=self._finish,
            on_cancel=self._stopped,
            on_error=self._failed,
        )

    def _show(self, found: road.Found) -> None:
        """Take over what a stage found."""
        previous = self.found
        if self._live is None and found.loaded is not None:
            task = found.loaded.task
            self.param.metric.objects = ["loss", *task.metrics]
            self._live = LiveProfile(ALIGNMENTS, list(task.splits), ["loss", *task.metrics], found.choice.grid)
        self.found = found
        if found.alignment is not None and not self.aligned:
            names = list(found.symmetry.groups)
            self.param.factors.objects = self.param.factor.objects = names
            self.param.update(factors=names, factor=names[0], aligned=True)
        if found.spectra is not None and not self.compared:
            layers = found.spectra["layer"].to_numpy().tolist()
            self.param.layer.objects = layers
            self.param.update(layer=layers[0], compared=True)
        for name, profile in found.profiles.items():
            if previous is None or name not in previous.profiles:
                self._live.finish(name, profile)
                self.profile = self._live.dataset()
        self._measure_barriers()
        if found.loaded is not None and (previous is None or previous.alignment is not found.alignment):
            self.look()

    def _progress(self, steps: list[Step]) -> None:
        points = False
        for step in steps:
            if step.total is None and step.done == 0:
                self._stage = step.stage
                if self._live is not None and step.stage in CURVES:
                    self._live.forget(CURVES[step.stage])
            elif self._live is not None and step.stage in CURVES:
                self._live.add(CURVES[step.stage], step)
                points = True
        if points:
            self.profile = self._live.dataset()
        if self.message != "Stopping…":
            self.param.update(message=_sentence(self._stage, steps[-1]), fraction=steps[-1].fraction)

    def _finish(self, found: road.Found) -> None:
        if found.alignment.cancelled and not found.profiles:
            sweeps = found.alignment.sweeps
            self.param.update(
                status="stopped",
                can_resume=True,
                fraction=None,
                message=f"Matching was stopped in sweep {sweeps}. The best alignment found so far is kept and shown; "
                "it is not a local optimum. Continue measures it.",
            )
            return
        self.param.update(status="done", fraction=None, message=f"Finished in {sum(found.seconds.values()):.1f} s.")

    def _stopped(self) -> None:
        kept = "the curves keep the points measured so far" if self._stage in CURVES else "what was found so far is kept"
        self.param.update(
            status="stopped",
            can_resume=self.found is not None,
            fraction=None,
            message=f"Stopped while {_doing(self._stage)}; {kept}.",
        )

    def _failed(self, error: Exception) -> None:
        self.param.update(status="failed", can_resume=self.found is not None, fraction=None, message="", error=_text(error))

    # -- barriers, from finished curves only

    @param.depends("definition", watch=True)
    def _measure_barriers(self) -> None:
        if self.found is None:
            return
        profiles = dict(self.found.profiles)
        self.barriers = {name: self._barriers_of(profile) for name, profile in profiles.items()}
        total = len(self.param.factors.objects)
        shown = {(): profiles.get("naive"), **self._partial}
        if total:
            shown[tuple(self.param.factors.objects)] = profiles.get("aligned")
        ordered = sorted(((names, p) for names, p in shown.items() if p is not None), key=lambda item: len(item[0]))
        self.steps = {self._name(names): self._barriers_of(p) for names, p in ordered}

    def _barriers_of(self, profile: xr.Dataset) -> dict[str, xr.DataArray]:
        return {metric: barrier(profile, metric, self.definition) for metric in self.param.metric.objects}

    def _name(self, names: tuple[str, ...]) -> str:
        if not names:
            return "none (naive)"
        if len(names) == len(self.param.factors.objects):
            return "all (aligned)"
        return " + ".join(names)

    # -- the alignment factor by factor

    @param.depends("factors", watch=True)
    def _apply_factors(self) -> None:
        names = tuple(name for name in self.param.factors.objects if name in self.factors)
        if self.found is None or self.found.alignment is None or self._live is None:
            return
        self._jobs.cancel("factors")
        self._live.forget("partial")
        if 0 < len(names) < len(self.param.factors.objects):
            if names in self._partial:
                self._live.finish("partial", self._partial[names])
            else:
                self._measure_factors(names)
        self.profile = self._live.dataset()
        self.look()

    def partial_path(self, names: tuple[str, ...]) -> LinearPath:
        """The straight path to the moving model with only the factors in ``names`` applied."""
        found = self.found
        element = found.alignment.element.restrict(names)
        return LinearPath(found.loaded.anchor, found.symmetry.apply(element, found.loaded.moving))

    def _measure_factors(self, names: tuple[str, ...]) -> None:
        found, alignment = self.found, self.found.alignment

        def work(job: Job) -> xr.Dataset:
            return profile_path(
                self.partial_path(names),
                found.loaded.model,
                found.loaded.task,
                points=found.choice.grid,
                splits=tuple(found.loaded.task.splits),
                progress=job.progress,
            )

        def points(steps: list[Step]) -> None:
            for step in steps:
                self._live.add("partial", step)
            self.profile = self._live.dataset()

        def keep(profile: xr.Dataset) -> None:
            if self.found is not None and self.found.alignment is alignment:
                self._partial[names] = profile
                self._live.finish("partial", profile)
                self.profile = self._live.dataset()
                self._measure_barriers()

        self._jobs.start("factors", work, on_steps=points, on_result=keep, on_error=self._failed_beside)

    # -- the numbers at one t

    @param.depends("t", watch=True)
    def look(self) -> None:
        """Evaluate the models at ``t`` on every path there is; while one evaluation runs only the latest t waits."""
        found = self.found
        if found is None or found.loaded is None:
            return
        t, paths = self.t, {"naive": found.path("naive")}
        names = tuple(name for name in self.param.factors.objects if name in self.factors)
        partial = found.alignment is not None and 0 < len(names) < len(self.param.factors.objects)

        def work(job: Job) -> tuple[float, dict[str, xr.Dataset]]:
            if found.alignment is not None:
                paths["aligned"] = found.path("aligned")
            if partial:
                paths["partial"] = self.partial_path(names)
            return t, {name: self._at(job, path, t, found) for name, path in paths.items()}

        self._jobs.start("at", work, on_result=lambda value: self.param.update(at=value), on_error=self._failed_beside)

    @staticmethod
    def _at(job: Job, path: LinearPath, t: float, found: road.Found) -> xr.Dataset:
        job.check()
        loaded = found.loaded
        splits = tuple(loaded.task.splits)
        return profile_path(path, loaded.model, loaded.task, points=[t], splits=splits, progress=job.progress)

    def _failed_beside(self, error: Exception) -> None:
        self.error = _text(error)


def _doing(stage: str) -> str:
    return {
        "": "starting",
        "reading": "reading the checkpoints",
        "symmetry": "discovering the symmetry",
        "profile naive": "measuring the naive curve",
        "profile aligned": "measuring the aligned curve",
        "singular vectors": "comparing singular vectors",
    }.get(stage, stage)


def _sentence(stage: str, step: Step) -> str:
    """One progress report in words, with its figures."""
    words = _doing(stage)
    words = words[0].upper() + words[1:]
    if step.total:
        words += f": {step.done} of {step.total}"
    values = step.values
    if "objective" in values:
        words += f": sweep {values.get('sweep', 0):.0f}, objective {values['objective']:.4f}"
    return words


def _text(error: Exception) -> str:
    """Our own errors speak for themselves; any other is named, so that it can be reported."""
    if isinstance(error, WorkbenchError):
        return str(error)
    return f"Something went wrong that should not have ({type(error).__name__}: {error}). Please report it."
