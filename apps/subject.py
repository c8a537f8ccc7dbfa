"""What the *Symmetries* page looks at: a checkpoint that is offered, or a built-in architecture with options in one line of text.

Options come from the browser. They are read as plain values, checked by the architecture, and bounded here, because building a
network costs memory before anything else can be said about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from workbench.architectures import ARCHITECTURES, Architecture
from workbench.checkpoints import fit_to_model, match_names
from workbench.errors import WorkbenchError
from workbench.options import complete_options, parse_options
from workbench.states import StateDict

from . import catalogue
from .settings import Settings

BUILT_IN = "built-in: "
EXAMPLES = 64  # on which outputs are compared
MOST_PARAMETERS = 20_000_000
LARGEST_OPTION, LONGEST_TEXT = 4096, 400


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with weights: ``state`` of the checkpoint, or initial ones; example_inputs for discovery, inputs to run it on."""

    model: nn.Module
    state: StateDict
    description: str
    weights: str
    example_inputs: tuple[Tensor, ...]
    inputs: Tensor
    about_inputs: str
    notes: tuple[str, ...] = ()


def labels(settings: Settings) -> list[str]:
    """The checkpoints, then the built-in architectures."""
    return [*catalogue.checkpoints(settings), *(BUILT_IN + name for name in ARCHITECTURES)]


def default_options(label: str) -> str:
    """The options of a built-in architecture as one line of text; empty for a checkpoint."""
    if not label.startswith(BUILT_IN):
        return ""
    name = label.removeprefix(BUILT_IN)
    options = complete_options("architecture", name, ARCHITECTURES[name], {})
    return ", ".join(f"{key}={value}" for key, value in options.items() if value is not None)


def read(settings: Settings, label: str, options: str, task: str) -> Subject:
    """Build the model and find inputs for it: of the task, else random ones of the size the architecture names."""
    if label.startswith(BUILT_IN):
        architecture: Any = _bounded(label.removeprefix(BUILT_IN), options)
        model = architecture.build(seed=0)
        state, weights, notes, says = model.state_dict(), "initial weights, seed 0", (), None
    else:
        checkpoint = catalogue.read_checkpoint(settings, label)
        architecture = catalogue.described(settings, checkpoint)
        model = architecture.build(seed=0)
        state, weights, says = fit_to_model(checkpoint, model), label, checkpoint.metadata.get("task")
        notes = (*checkpoint.notes, *match_names(checkpoint.state, model).notes)
    examples, inputs, about, more = _inputs(settings, architecture, task, says)
    return Subject(model, state, str(architecture), weights, examples, inputs, about, (*notes, *more))


def _inputs(settings: Settings, architecture: Any, task: str, says: str | None) -> tuple[Any, Tensor, str, tuple[str, ...]]:
    """(example inputs, inputs to run on, words for them, notes). A symmetry is not about data: where the task's files are not here,
    random inputs of the right size do as well."""
    own = task == catalogue.AS_CHECKPOINT_SAYS and isinstance(architecture, Architecture)
    notes: tuple[str, ...] = ()
    if not (own and says is None):
        try:
            found = catalogue.read_task(settings, task, says)
            split = next(iter(found.splits))
            return found.example_inputs, found.split(split)[0][:EXAMPLES], f"{split} inputs of {found.name}", ()
        except WorkbenchError:
            if not own:
                raise
            notes = (f"random inputs, because the task {(says or '').partition(':')[0]!r} cannot be read here",)
    (inputs,) = architecture.example_inputs(EXAMPLES, seed=1)
    return architecture.example_inputs(), inputs, "random inputs", notes


def _bounded(name: str, text: str) -> Architecture:
    """The architecture, where its size is one that a visitor may ask of a shared machine."""
    if len(text) > LONGEST_TEXT:
        raise WorkbenchError(f"The options are {len(text)} characters long", expected=f"at most {LONGEST_TEXT}")
    options = parse_options(text)
    for key, value in options.items():
        numbers = list(_numbers(value))
        if any(number > LARGEST_OPTION for number in numbers):
            raise WorkbenchError(f"{key}={value} was asked for", expected=f"numbers up to {LARGEST_OPTION} on the dashboard")
    architecture = Architecture(name, options)
    if architecture.parameters() > MOST_PARAMETERS:
        raise WorkbenchError(
            f"{architecture.describe()} were asked for",
            expected=f"at most {MOST_PARAMETERS:,} on the dashboard",
            next_step="choose smaller options, or use `workbench symmetry` on a machine of your own",
        )
    return architecture


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _numbers(item)
