"""What the *Symmetries* page shows and can do: discover a group, explain it, apply a random element, and break it on purpose.

Every action calls public functions in a worker; parameters are changed only by the session's own thread.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import param
import torch
import xarray as xr

from workbench.errors import WorkbenchError
from workbench.progress import Step
from workbench.symmetry import (
    Symmetry,
    TensorAxis,
    change_basis,
    compare_outputs,
    discover_symmetry,
    min_mass,
    move_alone,
    one_mover,
    tensor_axes,
)

from .. import catalogue, subject
from ..jobs import Job, Jobs
from ..progress_words import sentence
from ..settings import Settings
from ..subject import Subject
from ..working import Working

EVERYTHING = "the whole group"
LANES = ("symmetry", "element")
OPENING = "shipped: digits-convnet-seed0"
WEIGHED = 10**7  # numbers of a model whose least mass is found beside its group


@dataclass(frozen=True, eq=False)
class Discovered:
    """A model and its group; axes: one row per tensor axis; seconds: what discovery and proof took; excess: mass / least mass under
    the positive scales, None where there are none."""

    subject: Subject
    symmetry: Symmetry
    axes: tuple[TensorAxis, ...]
    seconds: float
    excess: float | None = None


@dataclass(frozen=True, eq=False)
class Change:
    """The outputs before and after a change of the weights. moved: factor -> units that are not where they were; alone: the
    tensor that was moved without those tied to it, empty where the whole element was applied; scales, signs, bases: how many
    numbers, signs and matrices were drawn."""

    seed: int
    moved: dict[str, int]
    outputs: xr.Dataset
    alone: str = ""
    scales: int = 0
    signs: int = 0
    bases: int = 0


def _excess(symmetry: Symmetry, state: Any) -> float | None:
    """mass / least mass; None where there are no scales, the model is large, or the least is not reached."""
    if not symmetry.scale_dimension or sum(tensor.numel() for tensor in state.values()) > WEIGHED:
        return None
    try:
        return min_mass(symmetry, state).ratio
    except WorkbenchError:
        return None


class SymmetriesState(Working):
    """One visitor's look at one model."""

    source = param.Selector(objects=[], label="Model")
    options = param.String(label="Options")
    task = param.Selector(objects=[], label="Inputs of the task")
    has_options = param.Boolean(default=False, doc="Whether the model is a built-in architecture.")
    scaled = param.Boolean(default=False, label="Also scales, signs and changes of basis")

    found = param.Parameter(doc="Discovered, or None before the first.")
    movable = param.Boolean(default=False, doc="Whether anything may be chosen, so that there are elements to apply.")
    has_factors = param.Boolean(default=False, doc="Whether units may be permuted, so that there is a tensor to move alone.")
    has_scalings = param.Boolean(default=False, doc="Whether there are scales, signs or changes of basis to show.")
    selected = param.Selector(objects=[EVERYTHING], default=EVERYTHING, label="Factor or tensor")
    explanation = param.String(doc="The chain of reasons for what is selected.")

    seed = param.Integer(default=0, bounds=(0, 2**31), label="Seed")
    acting = param.Boolean(default=False, doc="Whether an element is being applied.")
    kept = param.Parameter(doc="Change under the last random element, or None.")
    tied = param.Selector(objects={}, label="Tensor to move alone")  # label -> (factor, tensor)
    broken = param.Parameter(doc="Change under the last broken element, or None.")

    def __init__(self, jobs: Jobs, settings: Settings, **params: object) -> None:
        super().__init__(jobs, settings, **params)
        names = subject.labels(settings)
        self.param.source.objects = names
        own = [name for name in names if not name.startswith(("shipped: ", subject.BUILT_IN))]
        self.source = own[0] if own else OPENING if OPENING in names else names[0]
        self.param.task.objects = catalogue.tasks(settings)
        self.task = self.param.task.objects[0]

    @param.depends("source", watch=True)
    def _offer_options(self) -> None:
        self.options = subject.default_options(self.source)
        self.has_options = bool(self.options)

    # -- discovery

    def discover(self) -> None:
        """Start from the current choices; a discovery under way is cancelled and replaced."""
        for lane in LANES:
            self._jobs.drop(lane)
        self.param.selected.objects = [EVERYTHING]
        self.param.update(
            found=None,
            movable=False,
            has_factors=False,
            has_scalings=False,
            acting=False,
            kept=None,
            broken=None,
            selected=EVERYTHING,
            explanation="",
            error="",
            status="running",
            fraction=None,
        )
        self.message = "Starting"
        source, options, task, scaled = self.source, self.options, self.task, self.scaled

        def work(job: Job) -> Discovered:
            job.say("reading model")
            read = subject.read(self._settings, source, options, task)
            job.check()
            job.say("export")
            started = time.perf_counter()
            symmetry = discover_symmetry(
                read.model, read.example_inputs, scales=scaled, signs=scaled, progress=job.progress
            )
            seconds = time.perf_counter() - started
            if symmetry.scale_dimension:
                job.check()
                job.say("least mass")
            return Discovered(read, symmetry, tensor_axes(symmetry), seconds, _excess(symmetry, read.state))

        self._jobs.start(
            "symmetry",
            work,
            on_steps=self._progress,
            on_result=self._show,
            on_cancel=self._stopped,
            on_error=self._failed,
        )

    def cancel(self) -> None:
        """Ask the discovery to stop at its next step."""
        if self.status == "running":
            self.message = "Stopping…"
        for lane in LANES:
            self._jobs.cancel(lane)

    def _progress(self, steps: list[Step]) -> None:
        if self.message != "Stopping…":
            self.param.update(message=sentence(steps[-1].stage, steps[-1]), fraction=steps[-1].fraction)

    def _show(self, found: Discovered) -> None:
        symmetry = found.symmetry
        self.param.update(
            found=found,
            movable=bool(symmetry.groups or symmetry.scalings or symmetry.linear),
            has_factors=bool(symmetry.groups),
            has_scalings=bool(symmetry.scalings or symmetry.linear),
        )
        self.param.selected.objects = list(dict.fromkeys([EVERYTHING, *found.symmetry.groups, *found.symmetry.tensors]))
        self._explain()
        self._offer_tensors()
        seconds = f"{found.seconds:.1f} s"
        self.param.update(status="done", fraction=None, message=f"Discovered and proved in {seconds}.")
        if self.movable:
            self.apply_random()

    def _stopped(self) -> None:
        self.param.update(status="stopped", fraction=None, message="Stopped. Nothing is claimed of a group half discovered.")

    def _failed(self, error: Exception) -> None:
        self.param.update(status="failed", fraction=None, message="", error=self._text(error))

    # -- explanation

    @param.depends("selected", watch=True)
    def _explain(self) -> None:
        if self.found is None:
            return
        self.explanation = self.found.symmetry.explain(None if self.selected == EVERYTHING else self.selected)
        self._offer_tensors()

    def _offer_tensors(self) -> None:
        """The tensors that can be moved alone: those of the selected factor, the selected one, or all."""
        symmetry = self.found.symmetry
        dead = set(symmetry.proof.dead) if symmetry.proof is not None else set()
        pairs = {
            f"{member.tensor} (by {name})": (name, member.tensor)
            for name, group in symmetry.groups.items()
            for member in group.members
            if (name, member.tensor) not in dead and len({m.tensor for m in group.members}) > 1
        }
        chosen = {label: pair for label, pair in pairs.items() if self.selected in pair} or pairs
        self.param.tied.objects = chosen
        # A large tensor is hardly one whose entries are all alike, such as a norm's scale before training.
        self.tied = max(chosen.values(), key=lambda pair: math.prod(symmetry.tensors[pair[1]].shape), default=None)

    # -- elements

    def apply_random(self) -> None:
        """Draw an element, apply it, compare the outputs; pressed again, with the next seed."""
        found = self.found
        if not self.movable or self.acting:
            return
        if self.kept is not None and self.kept.seed == self.seed:
            self.seed += 1
        seed = self.seed

        def work(job: Job) -> Change:
            symmetry = found.symmetry
            element = symmetry.sample(seed)
            # Units only change places, but a product with a scale is rounded: to the precision the outputs are compared in.
            state = {n: t.double() if t.is_floating_point() else t for n, t in found.subject.state.items()}
            after = symmetry.apply(element, state)
            generator = torch.Generator().manual_seed(seed)
            for factor in symmetry.linear:
                after |= change_basis(symmetry, factor, factor.sample(generator), after)
            drawn = {"scales": symmetry.scale_dimension, "signs": symmetry.sign_bits}
            bases = sum(factor.copies for factor in symmetry.linear)
            return Change(seed, element.units_moved(), self._outputs(found, after), **drawn, bases=bases)

        self._start_beside(work, "kept")

    def break_it(self) -> None:
        """Move one tensor of a factor and leave behind those tied to it."""
        found = self.found
        if self.tied is None or not self.movable or self.acting:
            return
        (factor, tensor), seed = self.tied, self.seed

        def work(job: Job) -> Change:
            element = one_mover(found.symmetry, factor, seed)
            outputs = self._outputs(found, move_alone(found.symmetry, element, found.subject.state, tensor))
            return Change(seed, element.units_moved(), outputs, alone=tensor)

        self._start_beside(work, "broken")

    @staticmethod
    def _outputs(found: Discovered, after: Any) -> xr.Dataset:
        return compare_outputs(found.subject.model, found.subject.state, after, found.subject.inputs)

    def _start_beside(self, work: Any, name: str) -> None:
        self.param.update(error="", acting=True)
        self._jobs.start(
            "element",
            work,
            on_result=lambda change: self.param.update(acting=False, **{name: change}),
            on_cancel=lambda: self.param.update(acting=False),
            on_error=lambda error: self.param.update(acting=False, error=self._text(error)),
        )
