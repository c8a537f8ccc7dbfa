"""The arguments that name checkpoints, a model and a task, and what they stand for.

A checkpoint is a file, a folder of shards, or the name of a shipped one. Its own metadata may say which architecture and task
it belongs to; ``--model`` and ``--task`` say so where it does not, and win where it does.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError
from workbench.options import parse_options

if TYPE_CHECKING:
    from torch import nn

    from workbench.checkpoints import Checkpoint
    from workbench.states import StateDict
    from workbench.tasks import Task

SHIPPED_PAIR = ("digits-mlp-w256-seed0", "digits-mlp-w256-seed1")


@dataclass(frozen=True)
class Pair:
    """Two checkpoints that fit one model, and the task they were trained on."""

    names: tuple[str, str]
    anchor: StateDict
    moving: StateDict
    model: nn.Module
    model_name: str
    task: Task
    notes: tuple[str, ...]


def add_pair(parser: argparse.ArgumentParser) -> None:
    """``A B --model --task --root --key``."""
    parser.add_argument("a", metavar="A", nargs="?", help="the anchor: a checkpoint file or folder, or the name of a shipped checkpoint")
    parser.add_argument("b", metavar="B", nargs="?", help="the checkpoint that is moved onto A (default for both: a shipped pair)")
    parser.add_argument("--model", help="architecture: a built-in name, name:key=value,…, or package.module:factory")
    parser.add_argument("--key", help="where the weights lie inside a file that holds several state dicts")
    add_task(parser)


def add_task(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", help="the data: a task's name, or name:key=value,… (default: what the checkpoint says)")
    parser.add_argument("--root", help="folder of the task's data files, for tasks that are not embedded")


def add_matching(parser: argparse.ArgumentParser) -> None:
    """``--matcher --seed --device``."""
    parser.add_argument("--matcher", default="weights", help="how to match, see `workbench methods`: name or name:key=value,… (default: %(default)s)")
    add_seed(parser)
    add_device(parser)


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default: %(default)s)")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, … (default: %(default)s)")


def add_points(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--points", type=int, default=25, help="number of points on the path, ends included (default: %(default)s)")


def read_checkpoint(text: str, *, key: str | None = None) -> Checkpoint:
    """The checkpoint in the file or folder ``text``, or the shipped one of that name."""
    from workbench.checkpoints import load_checkpoint, shipped, shipped_checkpoint

    if not Path(text).exists():
        names = [entry["name"] for entry in shipped()]
        if text in names:
            return shipped_checkpoint(text)
        raise WorkbenchError(
            f"There is no checkpoint {text!r}",
            expected=f"a file or a folder, or the name of a shipped checkpoint ({', '.join(names[:3])}, …)",
            next_step="`workbench methods` lists the shipped ones",
        )
    return load_checkpoint(text, key=key)


def read_pair(arguments: argparse.Namespace) -> Pair:
    """What the arguments of ``add_pair`` stand for; raises WorkbenchError where something is missing or does not fit."""
    if arguments.a is not None and arguments.b is None:
        raise WorkbenchError("One checkpoint was given", expected="two, A and B, or none for the shipped pair")
    names = (arguments.a, arguments.b) if arguments.a is not None else SHIPPED_PAIR
    first, second = (read_checkpoint(name, key=arguments.key) for name in names)
    model, model_name = read_model(arguments.model, first)
    return Pair(
        names,
        fit(first, model),
        fit(second, model),
        model,
        model_name,
        read_task(arguments, first),
        tuple(f"{name}: {note}" for name, item in zip(names, (first, second), strict=True) for note in item.notes),
    )


def read_model(text: str | None, checkpoint: Checkpoint | None) -> tuple[nn.Module, str]:
    """The module ``--model`` names, else the one the checkpoint's metadata describes; and its name in words."""
    from workbench.architectures import resolve_model

    if text is not None:
        model = resolve_model(text)
        return model, text
    architecture = None if checkpoint is None else checkpoint.architecture
    if architecture is None:
        raise WorkbenchError(
            f"{checkpoint.source if checkpoint else 'The checkpoint'} does not say which architecture it belongs to",
            expected="a file written by `workbench train`, or the option --model",
            next_step="pass --model mlp:inputs=784,outputs=10,width=512 or --model my_package.my_module:make_model",
        )
    return architecture.build(), architecture.describe()


def read_task(arguments: argparse.Namespace, checkpoint: Checkpoint | None) -> Task:
    """The task ``--task`` (and ``--root``) name, else the one the checkpoint's metadata names."""
    from workbench.tasks import TASKS, task

    text = arguments.task or (checkpoint.metadata.get("task") if checkpoint is not None else None)
    if text is None:
        raise WorkbenchError("No task was named, and the checkpoint does not say on which it was trained", expected=f"--task with one of {', '.join(TASKS)}")
    name, _, rest = text.partition(":")
    options: dict[str, Any] = parse_options(rest)
    if arguments.root is not None:
        options["root"] = arguments.root
    return task(name, **options)


def fit(checkpoint: Checkpoint, model: nn.Module) -> StateDict:
    """The checkpoint's tensors under the model's names; raises with the counts where not every tensor has its place."""
    from workbench.checkpoints import fit_to_model

    return fit_to_model(checkpoint, model)
