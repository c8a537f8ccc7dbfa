"""The road of a comparison, stage by stage: symmetry, matching, the loss along two paths, singular vectors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import xarray as xr
from torch import nn

from workbench.matching import Alignment, Matcher, align
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.progress import Progress
from workbench.spectra import singular_alignment
from workbench.states import StateDict
from workbench.symmetry import Element, Symmetry, discover_symmetry
from workbench.tasks import Task

# How many examples the function-preservation check runs.
CHECKED = 256


@dataclass(frozen=True, eq=False)
class Walk:
    """The road of ``compare`` one stage at a time, for those who show what every stage found.

        walk = Walk(anchor, moving, model, task)
        while walk.stage is not None:
            walk = walk.advance(progress)
        Comparison.of_walk(walk)

    What is given (symmetry, alignment, profiles by "naive" and "aligned", spectra) is not done again. A cancelled matching is an
    alignment with ``cancelled`` set, the best element so far; whether to go on with it is the caller's to decide. seconds: stage ->
    wall-clock. Other fields as the parameters of ``compare``; with_spectra: whether singular vectors are compared. A matcher that
    looks at data sees ``model`` and ``task``.
    """

    anchor: StateDict
    moving: StateDict
    model: nn.Module
    task: Task
    matcher: str | Matcher = "weights"
    points: int | Sequence[float] = 25
    splits: tuple[str, ...] | None = None
    gamma: Sequence[float] = (0.0, 0.3, 0.5)
    top: Sequence[int] = (8,)
    null: bool = True
    with_spectra: bool = True
    seed: int = 0
    device: str | torch.device = "auto"
    start: Alignment | Element | None = None
    symmetry: Symmetry | None = None
    alignment: Alignment | None = None
    profiles: Mapping[str, xr.Dataset] = field(default_factory=dict)
    spectra: xr.Dataset | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def stage(self) -> str | None:
        """The next stage: "symmetry", "matching", "profile naive", "profile aligned", "singular vectors", or None at the end."""
        if self.symmetry is None:
            return "symmetry"
        if self.alignment is None:
            return "matching"
        for name in ("naive", "aligned"):
            if name not in self.profiles:
                return f"profile {name}"
        return "singular vectors" if self.with_spectra and self.spectra is None else None

    def advance(self, progress: Progress | None = None) -> Walk:
        """This walk with the result of its next stage. progress: called by the stage; may raise ``Cancelled``."""
        stage = self.stage
        if stage is None:
            return self
        start = time.perf_counter()
        found: dict[str, Any]
        if stage == "symmetry":
            found = {"symmetry": discover_symmetry(self.model, self.task.example_inputs, progress=progress)}
        elif stage == "matching":
            found = {"alignment": self._match(progress)}
        elif stage == "singular vectors":
            found = {"spectra": self._compare_vectors(progress)}
        else:
            name = stage.removeprefix("profile ")
            found = {"profiles": {**self.profiles, name: self._profile(name, progress)}}
        return replace(self, **found, seconds={**self.seconds, stage: time.perf_counter() - start})

    def path(self, name: str) -> LinearPath:
        """The straight path from the anchor to the moving model "naive"ly, or to the "aligned" one."""
        return LinearPath(self.anchor, self.moving if name == "naive" else self.alignment.aligned)

    def _match(self, progress: Progress | None) -> Alignment:
        first = self.task.chosen(self.splits)[0]
        return align(
            self.symmetry,
            self.anchor,
            self.moving,
            self.matcher,
            seed=self.seed,
            device=self.device,
            model=self.model,
            inputs=self.task.split(first)[0][:CHECKED],
            task=self.task,
            start=self.start,
            progress=progress,
        )

    def _profile(self, name: str, progress: Progress | None) -> xr.Dataset:
        return profile_path(
            self.path(name),
            self.model,
            self.task,
            points=self.points,
            splits=self.task.chosen(self.splits),
            device=self.device,
            progress=progress,
            stage=f"profile {name}",
        )

    def _compare_vectors(self, progress: Progress | None) -> xr.Dataset:
        return singular_alignment(
            self.anchor,
            self.moving,
            aligned=self.alignment.aligned,
            symmetry=self.symmetry,
            matcher=self.matcher,
            model=self.model,
            task=self.task,
            gamma=self.gamma,
            top=self.top,
            null=self.null,
            seed=self.seed,
            device=self.device,
            progress=progress,
        )
