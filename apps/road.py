"""The road two checkpoints travel, one public function per stage. What earlier stages found is kept and not done again.

Runs in a worker thread; ``show`` gets a new ``Found`` after every stage, so that the page fills in from the top.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

from workbench.architectures import ARCHITECTURES, resolve_model
from workbench.checkpoints import Checkpoint, fit_to_model, match_names
from workbench.comparison import Comparison
from workbench.errors import WorkbenchError
from workbench.matching import Alignment, align
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.spectra import singular_alignment
from workbench.states import StateDict
from workbench.symmetry import Symmetry, discover_symmetry
from workbench.tasks import Task

from . import catalogue
from .jobs import Job
from .settings import Settings

GAMMA = (0.0, 0.3, 0.5)
EXAMPLES = 256  # real inputs on which the aligned model must give the same outputs


@dataclass(frozen=True)
class Choice:
    """What the visitor chose, taken when the button was pressed."""

    anchor: str
    moving: str
    task: str = catalogue.AS_CHECKPOINT_SAYS
    matcher: str = "weights"
    seed: int = 0
    points: int = 25

    @property
    def grid(self) -> np.ndarray:
        """The values of t, ends included."""
        return np.linspace(0.0, 1.0, self.points)


@dataclass(frozen=True, eq=False)
class Loaded:
    """Two state dicts that fit one model, and the task to judge them on."""

    anchor: StateDict
    moving: StateDict
    model: nn.Module
    model_name: str
    task: Task
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Found:
    """What the road has found so far, for one choice. profiles: "naive", "aligned" -> the finished profile; comparison: the
    whole, once every stage is there."""

    choice: Choice
    loaded: Loaded | None = None
    symmetry: Symmetry | None = None
    alignment: Alignment | None = None
    profiles: Mapping[str, xr.Dataset] = field(default_factory=dict)
    spectra: xr.Dataset | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    comparison: Comparison | None = None

    def path(self, name: str) -> LinearPath:
        """The straight path from the anchor to the moving model "naive"ly, or to the "aligned" one."""
        end = self.loaded.moving if name == "naive" else self.alignment.aligned
        return LinearPath(self.loaded.anchor, end)


def load(settings: Settings, choice: Choice) -> Loaded:
    """Read both checkpoints, build their model, fit them to it, and read the task."""
    first, second = (catalogue.read_checkpoint(settings, label) for label in (choice.anchor, choice.moving))
    model, model_name = _model(settings, first, second)
    task = catalogue.read_task(settings, choice.task, first.metadata.get("task"))
    notes = tuple(
        f"{item.source}: {note}" for item in (first, second) for note in (*item.notes, *match_names(item.state, model).notes)
    )
    return Loaded(fit_to_model(first, model), fit_to_model(second, model), model, model_name, task, notes)


def _model(settings: Settings, *checkpoints: Checkpoint) -> tuple[nn.Module, str]:
    told = [checkpoint.architecture for checkpoint in checkpoints if checkpoint.architecture is not None]
    if len({str(architecture) for architecture in told}) > 1:
        raise WorkbenchError(
            f"The two checkpoints are of different architectures: {told[0]} and {told[1]}",
            expected="two checkpoints of one architecture",
            next_step="choose two of the same kind and width",
        )
    if told:
        return told[0].build(seed=0), str(told[0])
    if settings.model is None:
        raise WorkbenchError(
            "Neither checkpoint says which architecture it belongs to",
            expected="a file written by `workbench train`, or a server that was told the model",
            next_step=f"start the server with --model and one of {', '.join(ARCHITECTURES)}, or package.module:factory",
        )
    chosen = resolve_model(settings.model)
    return chosen.build(seed=0), str(chosen)


class _Journey:
    """One walk along the road: shows every new ``Found``, times the stages, and stops between two of them when cancelled."""

    def __init__(self, job: Job, found: Found, show: Callable[[Found], None]) -> None:
        self.job, self.found, self._show = job, found, show
        self._started = time.perf_counter()

    def begin(self, stage: str) -> None:
        self._started = time.perf_counter()
        self.job.say(stage)

    def keep(self, stage: str, **more: Any) -> None:
        seconds = {**self.found.seconds, stage: time.perf_counter() - self._started}
        self.found = replace(self.found, seconds=seconds, **more)
        self.job.emit(self._show, self.found)
        self.job.check()


def travel(job: Job, settings: Settings, found: Found, show: Callable[[Found], None]) -> Found:
    """Do the stages ``found`` lacks, in order. A cancelled matching ends the road with the best element found so far."""
    journey, choice = _Journey(job, found, show), found.choice
    if found.loaded is None:
        journey.begin("reading")
        journey.keep("reading", loaded=load(settings, choice))
    loaded = journey.found.loaded
    splits = tuple(loaded.task.splits)
    if found.symmetry is None:
        journey.begin("symmetry")
        journey.keep("symmetry", symmetry=discover_symmetry(loaded.model, loaded.task.example_inputs))
    symmetry = journey.found.symmetry
    if found.alignment is None:
        journey.begin("matching")
        alignment = align(
            symmetry,
            loaded.anchor,
            loaded.moving,
            choice.matcher,
            seed=choice.seed,
            model=loaded.model,
            inputs=loaded.task.split(splits[0])[0][:EXAMPLES],
            progress=job.progress,
        )
        if alignment.cancelled:
            journey.found = replace(journey.found, alignment=alignment)
            job.emit(show, journey.found)
            return journey.found
        journey.keep("matching", alignment=alignment)
    for name in ("naive", "aligned"):
        if name not in found.profiles:
            stage = f"profile {name}"
            journey.begin(stage)
            profile = profile_path(
                journey.found.path(name),
                loaded.model,
                loaded.task,
                points=choice.grid,
                splits=splits,
                progress=job.progress,
                stage=stage,
            )
            journey.keep(stage, profiles={**journey.found.profiles, name: profile})
    alignment = journey.found.alignment
    if found.spectra is None:
        journey.begin("singular vectors")
        spectra = singular_alignment(
            loaded.anchor,
            loaded.moving,
            aligned=alignment.aligned,
            symmetry=symmetry,
            matcher=choice.matcher,
            gamma=GAMMA,
            seed=choice.seed,
            progress=job.progress,
        )
        journey.keep("singular vectors", spectra=spectra)
    comparison = Comparison.of(
        symmetry=symmetry,
        alignment=alignment,
        anchor=loaded.anchor,
        moving=loaded.moving,
        naive=journey.found.profiles["naive"],
        aligned=journey.found.profiles["aligned"],
        spectra=journey.found.spectra,
        seconds=journey.found.seconds,
    )
    journey.found = replace(journey.found, comparison=comparison)
    job.emit(show, journey.found)
    return journey.found
