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
    if task == catalogue.AS_CHECKPOINT_SAYS and says is None and isinstance(architecture, Architecture):
        examples, (inputs,), about = architecture.example_inputs(), architecture.example_inputs(EXAMPLES, seed=1), "random inputs"
    else:
        read_task = catalogue.read_task(settings, task, says)
        split = next(iter(read_task.splits))
        examples, inputs = read_task.example_inputs, read_task.split(split)[0][:EXAMPLES]
        about = f"{split} inputs of {read_task.name}"
    return Subject(model, state, str(architecture), weights, examples, inputs, about, notes)


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
