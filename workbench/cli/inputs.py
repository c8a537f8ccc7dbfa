"""The arguments that name checkpoints, a model and a task, and what they stand for.

A checkpoint is a file, a folder of shards, or the name of a shipped one. Its own metadata may say which architecture and task
it belongs to; ``--model`` and ``--task`` say so where it does not, and win where it does.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.console import plain
from workbench.disk import output_file, user_path
from workbench.errors import WorkbenchError
from workbench.options import parse_options

if TYPE_CHECKING:
    from torch import Tensor, nn

    from workbench.architectures import Architecture, OutsideModel
    from workbench.checkpoints import Checkpoint
    from workbench.matching import Alignment
    from workbench.states import StateDict
    from workbench.tasks import Task

SHIPPED_PAIR = ("digits-mlp-w256-seed0", "digits-mlp-w256-seed1")
CHECKPOINT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
SMALL = 500_000  # parameters below which one thread is used


@dataclass(frozen=True)
class Pair:
    """Two checkpoints that fit one model, and the task they were trained on.

    task: None where none was named, or where it cannot be read here and is not needed; ``notes`` then says so.
    described: what the model was built from.
    """

    names: tuple[str, str]
    anchor: StateDict
    moving: StateDict
    model: nn.Module
    model_name: str
    task: Task | None
    described: Architecture | OutsideModel
    metadata: Mapping[str, str]
    notes: tuple[str, ...]

    def heading(self) -> str:
        """What is compared, in three lines."""
        return f"A     {self.names[0]}\nB     {self.names[1]}\nmodel {self.model_name}" + (
            f" on {self.task.name}" if self.task is not None else ""
        )

    def write_aligned(self, alignment: Alignment, path: str | os.PathLike[str]) -> None:
        """The aligned B as a checkpoint that keeps what B's own metadata said, and says how it was moved."""
        from workbench.checkpoints import save_checkpoint

        moved = {
            "aligned_to": str(self.names[0]),
            "aligned_from": str(self.names[1]),
            "alignment": json.dumps(plain(alignment.settings)),
        }
        save_checkpoint(alignment.aligned, path, metadata={**self.metadata, **moved})


def add_pair(parser: argparse.ArgumentParser) -> None:
    """``A B --model --task --root --key``."""
    parser.add_argument(
        "a", metavar="A", nargs="?", help="the anchor: a checkpoint file or folder, or the name of a shipped checkpoint"
    )
    parser.add_argument(
        "b", metavar="B", nargs="?", help="the checkpoint that is moved onto A (default for both: a shipped pair)"
    )
    parser.add_argument("--model", help="architecture: a built-in name, name:key=value,…, or package.module:factory")
    parser.add_argument(
        "--key",
        action="append",
        help="which state dict of a file that holds several; given twice: of A, then of B ('' is the top of a file)",
    )
    add_task(parser)


def add_task(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", help="the data: a task's name, or name:key=value,… (default: what the checkpoint says)")
    parser.add_argument("--root", help="folder of the task's data files, for tasks that are not embedded")


def add_input(parser: argparse.ArgumentParser) -> None:
    """``--input``, once per input of the model."""
    parser.add_argument(
        "--input",
        metavar="SHAPE",
        action="append",
        help="shape of an example input with its batch axis, 2x3x32x32 or 2x16+int for integers; once per input, in order",
    )


def add_judging(parser: argparse.ArgumentParser) -> None:
    """``--points --splits --examples``: where the loss is measured, and on what."""
    parser.add_argument(
        "--points", type=int, default=25, help="number of points on the path, ends included (default: %(default)s)"
    )
    parser.add_argument("--splits", nargs="+", help="splits of the task to measure on (default: all)")
    parser.add_argument("--examples", type=int, metavar="N", help="at most N examples of each split, drawn at random")


def add_spectra(parser: argparse.ArgumentParser) -> None:
    """``--gamma --no-null``."""
    parser.add_argument(
        "--gamma",
        type=float,
        nargs="+",
        default=[0.0, 0.3, 0.5],
        help="keep singular directions of at least this share of a layer's largest value (default: 0 0.3 0.5)",
    )
    parser.add_argument(
        "--no-null", action="store_true", help="leave out the unrelated networks that R is printed beside (faster)"
    )


def seed(text: str) -> int:
    """A seed that every generator takes."""
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2^63 - 1")
    return int(text)


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=seed, default=0, help="seed of everything random (default: %(default)s)")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, … (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, help="threads of the CPU (default: 1 for a small model, else torch's own choice)"
    )


def require_writable(file: str | None) -> None:
    """Raise where the file that ``--out`` names cannot be written: that is said before the long work."""
    if file is not None:
        output_file(file)


def use_threads(arguments: argparse.Namespace, parameters: int) -> None:
    """``--threads``, or one thread for a small model: two that wait for each other on busy cores are far slower than one."""
    import torch

    if arguments.threads is not None:
        most = os.cpu_count() or 1
        if not 1 <= arguments.threads <= most:
            raise WorkbenchError(f"--threads {arguments.threads}", expected=f"1 to {most}, the cores of this machine")
        torch.set_num_threads(arguments.threads)
    elif parameters < SMALL:
        torch.set_num_threads(1)


def read_checkpoint(text: str, *, key: str | None = None) -> Checkpoint:
    """The checkpoint in the file or folder ``text``, or the shipped one of that name."""
    from workbench.checkpoints import load_checkpoint, shipped_checkpoint, shipped_models

    if not text or not user_path(text).exists():
        names = [entry["name"] for entry in shipped_models()]
        if text in names:
            return shipped_checkpoint(text)
        raise WorkbenchError(
            f"There is no checkpoint {text!r}",
            expected=f"a file or a folder, or the name of a shipped checkpoint ({', '.join(names[:3])}, …)",
            next_step="`workbench methods` lists the shipped ones",
        )
    return load_checkpoint(text, key=key)


def read_pair(arguments: argparse.Namespace, *, task_needed: bool = True) -> Pair:
    """What the arguments of ``add_pair`` stand for; raises WorkbenchError where something is missing or does not fit.

    task_needed: False for what also works on the weights alone; a task that the arguments name must still be there.
    """
    from workbench.checkpoints import fit_to_model, match_names

    if arguments.a is not None and arguments.b is None:
        raise WorkbenchError("One checkpoint was given", expected="two, A and B, or none for the shipped pair")
    names = (arguments.a, arguments.b) if arguments.a is not None else SHIPPED_PAIR
    keys = arguments.key or [None]
    if len(keys) > 2:
        raise WorkbenchError(f"--key was given {len(keys)} times", expected="once for both checkpoints, or once for each")
    first, second = (read_checkpoint(name, key=key) for name, key in zip(names, (keys[0], keys[-1]), strict=True))
    described = read_described(arguments.model, first, second)
    model = described.build().eval()
    use_threads(arguments, sum(parameter.numel() for parameter in model.parameters()))
    read = tuple(zip(names, (first, second), strict=True))
    task, lost = (read_task(arguments, first), "") if task_needed or arguments.task else _task_told(arguments, first)
    notes = tuple(f"{name}: {note}" for name, item in read for note in (*item.notes, *match_names(item.state, model).notes))
    return Pair(
        names=names,
        anchor=fit_to_model(first, model),
        moving=fit_to_model(second, model),
        model=model,
        model_name=str(described),
        task=task,
        described=described,
        metadata=second.metadata,
        notes=(*notes, lost) if lost else notes,
    )


def _task_told(arguments: argparse.Namespace, checkpoint: Checkpoint) -> tuple[Task | None, str]:
    """The task the checkpoint names where it can be read here, else None and why, in words."""
    told = checkpoint.metadata.get("task")
    if told is None:
        return None, "no task was named: the function is compared on random inputs"
    try:
        return read_task(arguments, checkpoint), ""
    except WorkbenchError as error:
        name = told.partition(":")[0]
        return None, f"the task {name!r} cannot be read here: the function is compared on random inputs ({error.found})"


def read_architecture(text: str) -> Architecture | OutsideModel:
    """What MODEL names; it has ``build()`` and ``describe()``."""
    from workbench.architectures import resolve_model

    return resolve_model(text)


def read_subject(text: str) -> tuple[Architecture | OutsideModel, Checkpoint | None]:
    """What MODEL names where it may also be a checkpoint: a file, a folder, or the name of a shipped one.

    Of a checkpoint, the architecture it says it belongs to; raises where it says none, or where its tensors do not fit.
    """
    from workbench.architectures import ARCHITECTURES
    from workbench.checkpoints import fit_to_model, shipped_models

    file = bool(text) and (user_path(text).exists() or Path(text).suffix.lower() in CHECKPOINT_SUFFIXES)
    if text in ARCHITECTURES or not (file or text in {entry["name"] for entry in shipped_models()}):
        return read_architecture(text), None
    checkpoint = read_checkpoint(text)
    if checkpoint.architecture is None:
        raise WorkbenchError(
            f"{checkpoint.source} does not say which architecture it belongs to",
            expected="a file written by `workbench train`, or the architecture in its place: the weights do not matter here",
            next_step="name the model itself, as in mlp:inputs=784,width=512 or my_package.my_module:make_model",
        )
    fit_to_model(checkpoint, checkpoint.architecture.build())
    return checkpoint.architecture, checkpoint


def read_described(text: str | None, *checkpoints: Checkpoint) -> Architecture | OutsideModel:
    """The architecture ``--model`` names, else the one that the first checkpoint to say so describes."""
    if text is not None:
        return read_architecture(text)
    for checkpoint in checkpoints:
        if checkpoint.architecture is not None:
            return checkpoint.architecture
    raise WorkbenchError(
        f"{' and '.join(item.source for item in checkpoints)} do not say which architecture they belong to",
        expected="a file written by `workbench train`, or the option --model",
        next_step="pass --model mlp:inputs=784,width=512 or --model my_package.my_module:make_model",
    )


def read_task(arguments: argparse.Namespace, checkpoint: Checkpoint | None) -> Task:
    """The task ``--task`` (and ``--root``) name, else the one the checkpoint's metadata names."""
    from workbench.tasks import TASKS, task

    text = arguments.task or (checkpoint.metadata.get("task") if checkpoint is not None else None)
    if text is None:
        silent = "" if checkpoint is None else f", and {checkpoint.source} does not say on which it was trained"
        raise WorkbenchError(f"No task was named{silent}", expected=f"--task with one of {', '.join(TASKS)}")
    name, _, rest = text.partition(":")
    options: dict[str, Any] = parse_options(rest)
    if arguments.root is not None:
        options["root"] = arguments.root
    found = task(name, **options)
    examples = getattr(arguments, "examples", None)
    for split in found.splits if examples is not None else ():
        found = found.subset(split, min(examples, found.size(split)))
    return found


def example_inputs(arguments: argparse.Namespace, described: Architecture | OutsideModel) -> tuple[Tensor, ...]:
    """Inputs to export a model with: ``--input`` shapes, else examples of ``--task``, else the built-in's own size."""
    from workbench.architectures import Architecture

    if arguments.input:
        return tuple(_example(text) for text in arguments.input)
    if arguments.task:
        return read_task(arguments, None).example_inputs
    if isinstance(described, Architecture):
        return described.example_inputs()
    raise WorkbenchError(
        f"Nothing says what {described} takes as input",
        expected="the shape of one example batch, or a task",
        next_step="pass --input 2x3x32x32, or --task NAME",
    )


def _example(text: str) -> Tensor:
    """``"2x3x32x32"`` -> a random float batch; ``"2x16+int"`` -> integers 0 and 1."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shape, plus, kind = text.partition("+")
    sizes = shape.lower().split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes) or (plus and kind != "int"):
        raise WorkbenchError(
            f"The input shape {text!r} cannot be read", expected="sizes with x between them: 2x3x32x32, or 2x16+int"
        )
    dims = [int(size) for size in sizes]
    try:
        return torch.randint(0, 2, dims, generator=generator) if plus else torch.randn(dims, generator=generator)
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise WorkbenchError(f"An input of shape {text} cannot be made", cause="it does not fit into memory") from error
