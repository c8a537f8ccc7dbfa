"""The road two checkpoints travel, stage by stage. What earlier stages found is kept and not done again.

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

from workbench.checkpoints import fit_to_model, match_names
from workbench.comparison import Comparison
from workbench.errors import WorkbenchError
from workbench.matching import Alignment
from workbench.matching.fields import make_matcher
from workbench.stages import Walk
from workbench.states import StateDict, fingerprint
from workbench.symmetry import Symmetry
from workbench.tasks import Task

from . import catalogue
from .jobs import Job
from .settings import Settings

GAMMA = (0.0, 0.3, 0.5)


@dataclass(frozen=True)
class Choice:
    """What the visitor chose, taken when the button was pressed. options: fields of the matcher that differ from its defaults;
    start: the label of the alignment that the matcher goes on from, "" for its own start."""

    anchor: str
    moving: str
    task: str = catalogue.AS_CHECKPOINT_SAYS
    matcher: str = "weights"
    seed: int = 0
    points: int = 25
    options: Mapping[str, Any] = field(default_factory=dict)
    start: str = ""

    @property
    def pair(self) -> tuple[str, str, str]:
        """What alignments must share to be laid side by side."""
        return self.anchor, self.moving, self.task

    @property
    def words(self) -> str:
        """What differs from the defaults."""
        parts = [f"{name}={value}" for name, value in self.options.items()]
        parts += [f"seed {self.seed}"] if self.seed else []
        parts += [f"{self.points} points"] if self.points != Choice.points else []
        parts += [f"from {self.start}"] if self.start else []
        return ", ".join(parts)

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
    identity: str = ""  # equal exactly where model, weights and the name of the task are


@dataclass(frozen=True, eq=False)
class Found:
    """What the road has found so far, for one choice: ``walk`` holds it; comparison: the whole, once every stage is there.

    before: an earlier comparison of the same pair, whose symmetry and naive curve still hold where the weights are the same;
    start: the alignment that ``choice.start`` names.
    """

    choice: Choice
    before: Found | None = None
    start: Alignment | None = None
    loaded: Loaded | None = None
    walk: Walk | None = None
    reading: float = 0.0  # seconds
    comparison: Comparison | None = None

    @property
    def symmetry(self) -> Symmetry | None:
        return None if self.walk is None else self.walk.symmetry

    @property
    def alignment(self) -> Alignment | None:
        return None if self.walk is None else self.walk.alignment

    @property
    def profiles(self) -> Mapping[str, xr.Dataset]:
        """ "naive", "aligned" -> the finished profile."""
        return {} if self.walk is None else self.walk.profiles

    @property
    def spectra(self) -> xr.Dataset | None:
        return None if self.walk is None else self.walk.spectra

    @property
    def seconds(self) -> Mapping[str, float]:
        return {} if self.walk is None else {"reading": self.reading, **self.walk.seconds}


def load(settings: Settings, choice: Choice) -> Loaded:
    """Read both checkpoints, build their model, fit them to it, and read the task."""
    first, second = (catalogue.read_checkpoint(settings, label) for label in (choice.anchor, choice.moving))
    described = catalogue.described(settings, first, second)
    model, model_name = described.build(seed=0), str(described)
    task = catalogue.read_task(settings, choice.task, first.metadata.get("task"))
    notes = tuple(
        f"{item.source}: {note}" for item in (first, second) for note in (*item.notes, *match_names(item.state, model).notes)
    )
    anchor, moving = fit_to_model(first, model), fit_to_model(second, model)
    identity = "|".join((model_name, task.name, fingerprint(anchor), fingerprint(moving)))
    return Loaded(anchor, moving, model, model_name, task, notes, identity)


def begin(settings: Settings, found: Found) -> Found:
    """Read what was chosen. What an earlier comparison of the same weights knows is taken over."""
    started, choice, before = time.perf_counter(), found.choice, found.before
    matcher = make_matcher(choice.matcher, choice.options)
    loaded = load(settings, choice)
    known: dict[str, Any] = {}
    if before is not None and before.loaded is not None and before.loaded.identity == loaded.identity:
        known = {"symmetry": before.symmetry}
        if "naive" in before.profiles and before.choice.points == choice.points:
            known["profiles"] = {"naive": before.profiles["naive"]}
    elif found.start is not None:
        raise WorkbenchError(
            "The checkpoints are not those that the alignment to start from was found for",
            cause="a file has changed since",
            next_step="press Align with the matcher's own start",
        )
    walk = Walk(
        loaded.anchor,
        loaded.moving,
        loaded.model,
        loaded.task,
        matcher=matcher,
        points=choice.grid,
        gamma=GAMMA,
        seed=choice.seed,
        start=found.start,
        **known,
    )
    return Found(choice, start=found.start, loaded=loaded, walk=walk, reading=time.perf_counter() - started)


def travel(job: Job, settings: Settings, found: Found, show: Callable[[Found], None]) -> Found:
    """Do the stages ``found`` lacks, in order. A cancelled matching ends the road with the best element found so far."""
    if found.walk is None:
        job.say("reading")
        found = begin(settings, found)
        job.emit(show, found)
        job.check()
    while (stage := found.walk.stage) is not None:
        job.say(stage)
        found = replace(found, walk=found.walk.advance(job.progress))
        job.emit(show, found)
        if stage == "matching" and found.alignment.cancelled:
            return found
        job.check()
    found = replace(found, comparison=Comparison.of_walk(found.walk))
    job.emit(show, found)
    return found
