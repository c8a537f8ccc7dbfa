"""What the *Compare* page shows and can do. Every action calls one public function in a worker; nothing is computed here.

Parameters are changed only by the session's own thread: by widgets, and by the functions the job runner dispatches.
"""

from __future__ import annotations

from dataclasses import replace

import param
import xarray as xr
from param.parameterized import batch_call_watchers

from workbench.barriers import barrier
from workbench.errors import WorkbenchError
from workbench.matching import MATCHERS
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.progress import Step

from .. import catalogue, road
from ..factorwise import Factorwise
from ..jobs import Job, Jobs
from ..keeping import Keeping
from ..live import LiveProfile
from ..matcher_form import MatcherForm
from ..progress_words import doing, sentence
from ..settings import Settings

ALIGNMENTS = ("naive", "aligned", "partial")
LANES = ("road", "factors", "at")
CURVES = {"profile naive": "naive", "profile aligned": "aligned"}


class CompareState(Keeping):
    """One visitor's comparison."""

    anchor = param.Selector(objects=[], label="Anchor (stays)")
    moving = param.Selector(objects=[], label="Moving (is permuted)")
    task = param.Selector(objects=[], label="Task")
    matcher = param.Selector(default="weights", objects=["weights"], label="Matcher")
    form = param.Parameter(doc="MatcherForm of the chosen matcher.")
    seed = param.Integer(default=0, bounds=(0, None), label="Seed")
    points = param.Integer(default=25, bounds=(3, 201), label="Points on the path")

    can_resume = param.Boolean(default=False, doc="Whether there is something to go on with after a cancel or an error.")

    found = param.Parameter(doc="road.Found of the alignment that is shown, or None before the first.")
    profile = param.Parameter(doc="The curves so far: a Dataset over (alignment, split, t) with `measured`, or None.")

    metric = param.Selector(default="loss", objects=["loss"], label="Show")
    log_axis = param.Boolean(default=False, label="Log axis")
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
        super().__init__(jobs, settings, **params)
        self._live: LiveProfile | None = None
        self._stage = ""
        self._walking = False
        self._parts: Factorwise | None = None  # once there is an alignment
        self._forms: dict[str, MatcherForm] = {}
        names = list(catalogue.checkpoints(settings))
        self.param.anchor.objects = self.param.moving.objects = names
        self.anchor, self.moving = catalogue.first_pair(names)
        self.param.task.objects = catalogue.tasks(settings)
        self.task = self.param.task.objects[0]
        self.param.matcher.objects = list(MATCHERS)
        self._choose_form()

    # -- the matcher and its fields

    @param.depends("matcher", watch=True)
    def _choose_form(self) -> None:
        """What was typed for one matcher is there again when a visitor comes back to it."""
        if self.matcher not in self._forms:
            self._forms[self.matcher] = MatcherForm(self.matcher)
        self.form = self._forms[self.matcher]

    # -- the road: align, then curves, then spectra

    def align(self) -> None:
        """Start from the current choices; a comparison under way is cancelled and replaced. What cannot be is said at once."""
        try:
            options = self.form.options()
            self.form.build()
            choice = road.Choice(self.anchor, self.moving, self.task, self.matcher, self.seed, self.points, options)
            same = self._shelf.belongs(road.Found(choice))
            if same:
                self._shelf.require_room()
        except WorkbenchError as error:
            self.error = self._text(error)
            return
        if not same:
            self._shelf.clear()
        known = sorted((item.found for item in self._shelf.kept), key=lambda found: found.choice.points != self.points)
        from_ = self._shelf[self.start] if self.start in self._shelf.labels else None
        if from_ is not None:
            choice = replace(choice, start=from_.label)
        self._number = self._shelf.number()
        with batch_call_watchers(self):
            self._forget()
            self._settle(None)
            self._publish()
        self._start(road.Found(choice, before=known[0] if known else None, start=from_.found.alignment if from_ else None))

    def _forget(self) -> None:
        """Nothing is shown; what is kept stays."""
        self._live = self._parts = None
        self._jobs.drop("at")
        self._jobs.drop("factors")
        self.param.update(
            found=None, profile=None, barriers={}, at=None, steps={}, factors=[], aligned=False, compared=False, error=""
        )
        self.param.factors.objects = []

    def resume(self) -> None:
        """Go on after a cancel: the stages that are missing, with the alignment that was kept."""
        if self.can_resume:
            self.error = ""
            self._start(self.found)

    def cancel(self) -> None:
        """Ask everything that runs to stop at its next step."""
        if self.status == "running":
            self.message = "Stopping…"
        for lane in LANES:
            self._jobs.cancel(lane)

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
        if not self._shelf.belongs(found):  # a file has changed since
            self._shelf.clear()
            self._settle(None)
        if self._live is None and found.loaded is not None:
            task = found.loaded.task
            self.param.metric.objects = ["loss", *task.metrics]
            self._live = LiveProfile(ALIGNMENTS, list(task.splits), ["loss", *task.metrics], found.choice.grid)
        self.found = found
        if found.alignment is not None and not self.aligned:
            names = list(found.symmetry.groups)
            self._parts = self._parts_of(found)
            self.param.factors.objects = self.param.factor.objects = names
            self.param.update(factors=names, factor=names[0] if names else None, aligned=True)
        if found.spectra is not None and not self.compared:
            layers = found.spectra["layer"].to_numpy().tolist()
            self.param.layer.objects = layers
            self.param.update(layer=layers[0], compared=True)
        for name, profile in found.profiles.items():
            if previous is None or name not in previous.profiles:
                self._live.finish(name, profile)
                self._publish()
                self._measure_barriers()
        if previous is None or previous.symmetry is not found.symmetry or previous.alignment is not found.alignment:
            self.look()

    def _parts_of(self, found: road.Found) -> Factorwise:
        """The curves factor by factor of an alignment: those known from before, or none yet."""
        return self._known_parts(found) or Factorwise(
            self._jobs,
            found,
            on_points=self._partial_points,
            on_curve=self._finish_part,
            on_step=self._walk_to,
            on_error=self._failed_beside,
        )

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
            self._publish()
        if self.message != "Stopping…":
            self.param.update(message=sentence(self._stage, steps[-1]), fraction=steps[-1].fraction)

    def _finish(self, found: road.Found) -> None:
        self._keep()
        if found.comparison is None:  # a cancelled matching ends the road
            sweeps = found.alignment.sweeps
            self.param.update(
                status="stopped",
                can_resume=True,
                fraction=None,
                message=f"Matching was stopped in sweep {sweeps}. The best alignment found so far is kept and shown; "
                "it is not a local optimum. Continue measures it; to go on matching, choose it under “Start from”, then Align.",
            )
            return
        self.param.update(status="done", fraction=None, message=f"Finished in {sum(found.seconds.values()):.1f} s.")

    def _stopped(self) -> None:
        self._keep()
        kept = "the curves keep the points measured so far" if self._stage in CURVES else "what was found so far is kept"
        self.param.update(
            status="stopped",
            can_resume=self.found is not None,
            fraction=None,
            message=f"Stopped while {doing(self._stage)}; {kept}.",
        )

    def _failed(self, error: Exception) -> None:
        self._keep()
        self.param.update(
            status="failed", can_resume=self.found is not None, fraction=None, message="", error=self._text(error)
        )

    def _publish(self) -> None:
        """Show the points known so far."""
        live = self._live
        known = live.dataset() if live is not None and any(live.count(name) for name in ALIGNMENTS) else None
        self.profile = self._beside(known)

    # -- barriers, from finished curves only

    @param.depends("definition", watch=True)
    def _measure_barriers(self) -> None:
        if self.found is None:
            return
        profiles = dict(self.found.profiles)
        self.barriers = {name: self._barriers_of(profile) for name, profile in profiles.items()}
        parts = self._parts
        if parts is None:
            return
        shown = {(): profiles.get("naive"), **parts.curves, parts.names: profiles.get("aligned")}
        ordered = sorted(((names, p) for names, p in shown.items() if p is not None), key=lambda item: len(item[0]))
        self.steps = {parts.words(names): self._barriers_of(p) for names, p in ordered}

    def _barriers_of(self, profile: xr.Dataset) -> dict[str, xr.DataArray]:
        return {metric: barrier(profile, metric, self.definition) for metric in self.param.metric.objects}

    # -- the alignment factor by factor

    @property
    def _chosen(self) -> tuple[str, ...]:
        """The factors applied, in the symmetry's order."""
        return tuple(name for name in self.param.factors.objects if name in self.factors)

    @param.depends("factors", watch=True)
    def _apply_factors(self) -> None:
        """Show the curve of the chosen factors: measured now, or known from before."""
        parts = self._parts
        if self._live is None or parts is None:
            return
        names = self._chosen
        if not self._walking:
            parts.drop()
        before = self._live.count("partial")
        self._live.forget("partial")
        if names in parts.curves:
            self._live.finish("partial", parts.curves[names])
        elif parts.is_part(names) and not self._walking:
            parts.measure(names)
        if before or self._live.count("partial"):
            self._publish()
        self.look()

    def one_by_one(self) -> None:
        """Apply the factors one after another, from none to all, and measure the curve of every step that is not known yet."""
        if self._parts is not None:
            self._parts.walk()

    def _walk_to(self, names: tuple[str, ...]) -> None:
        self._walking = True
        try:
            self.factors = list(names)
        finally:
            self._walking = False

    def _partial_points(self, steps: list[Step]) -> None:
        for step in steps:
            self._live.add("partial", step)
        self._publish()

    def _finish_part(self, names: tuple[str, ...]) -> None:
        if names == self._chosen:
            self._live.finish("partial", self._parts.curves[names])
            self._publish()
        self._measure_barriers()

    # -- the numbers at one t

    @param.depends("t", watch=True)
    def look(self) -> None:
        """Evaluate the models at ``t`` on every path there is; while one evaluation runs only the latest t waits."""
        found = self.found
        # While the symmetry is discovered the model belongs to torch.export, which swaps its parameters.
        if found is None or found.symmetry is None:
            return
        t, paths = self.t, {"naive": found.walk.path("naive")}
        names, parts = self._chosen, self._parts

        def work(job: Job) -> tuple[float, dict[str, xr.Dataset]]:
            if found.alignment is not None:
                paths["aligned"] = found.walk.path("aligned")
            if parts is not None and parts.is_part(names):
                paths["partial"] = parts.path(names)
            return t, {name: self._at(job, path, t, found) for name, path in paths.items()}

        self._jobs.start("at", work, on_result=lambda value: self.param.update(at=value), on_error=self._failed_beside)

    @staticmethod
    def _at(job: Job, path: LinearPath, t: float, found: road.Found) -> xr.Dataset:
        job.check()
        loaded = found.loaded
        splits = tuple(loaded.task.splits)
        return profile_path(path, loaded.model, loaded.task, points=[t], splits=splits, progress=job.progress)

    def _failed_beside(self, error: Exception) -> None:
        self.error = self._text(error)
