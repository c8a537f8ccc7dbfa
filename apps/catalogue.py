"""What a visitor may choose: shipped checkpoints, files under the operator's folder, and the tasks whose data lie here.

A choice is a label out of a listing made on the server. Text from the browser is looked up in that listing and never opened
as a path.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench.architectures import ARCHITECTURES, Architecture, OutsideModel, resolve_model
from workbench.checkpoints import Checkpoint, load_checkpoint, shipped_checkpoint, shipped_models
from workbench.errors import WorkbenchError, unknown_name
from workbench.options import parse_options
from workbench.tasks import TASKS, Task, task

from .settings import Settings

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
DEFAULT_PAIR = ("shipped: digits-mlp-w256-seed0", "shipped: digits-mlp-w256-seed1")
AS_CHECKPOINT_SAYS = "as the checkpoint says"


def checkpoints(settings: Settings) -> dict[str, Callable[[], Checkpoint]]:
    """Label -> what reads it. The operator's files come first, then the shipped models; a link out of the folder is not offered."""
    found: dict[str, Callable[[], Checkpoint]] = {}
    if settings.checkpoints is not None:
        for path in _files(settings.checkpoints):
            found[path.relative_to(settings.checkpoints).as_posix()] = lambda path=path: load_checkpoint(path)
    for entry in shipped_models():
        name = entry["name"]
        found[f"shipped: {name}"] = lambda name=name: shipped_checkpoint(name)
    return found


def first_pair(labels: Sequence[str]) -> tuple[str | None, str | None]:
    """What the page opens with: the operator's first two files, else two shipped networks."""
    own = [label for label in labels if not label.startswith("shipped: ")]
    pair = own[:2] if len(own) > 1 else [label for label in DEFAULT_PAIR if label in labels] or list(labels[:2])
    return (pair[0], pair[-1]) if pair else (None, None)


def _files(folder: Path) -> list[Path]:
    sharded = {path.parent for path in folder.rglob("*.index.json")} - {folder}
    single = (p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file() and p.parent not in sharded)
    inside = folder.resolve()
    return sorted(p for p in {*sharded, *single} if p.resolve().is_relative_to(inside) and not _hidden(p, folder))


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def read_checkpoint(settings: Settings, label: str) -> Checkpoint:
    """The checkpoint behind a label of ``checkpoints``; an unknown label is an error, whatever it looks like."""
    listed = checkpoints(settings)
    if label not in listed:
        raise unknown_name("checkpoint", label, listed)
    return listed[label]()


def described(settings: Settings, *read: Checkpoint) -> Architecture | OutsideModel:
    """The architecture the checkpoints say they belong to, else the one the operator named. Raises where they disagree."""
    told = [checkpoint.architecture for checkpoint in read if checkpoint.architecture is not None]
    if len({str(architecture) for architecture in told}) > 1:
        raise WorkbenchError(
            f"The two checkpoints are of different architectures: {told[0]} and {told[1]}",
            expected="two checkpoints of one architecture",
            next_step="choose two of the same kind and width",
        )
    if told:
        return told[0]
    if settings.model is None:
        raise WorkbenchError(
            f"{'Neither checkpoint says' if len(read) > 1 else 'The checkpoint does not say'} which architecture it belongs to",
            expected="a file written by `workbench train`, or a server that was told the model",
            next_step=f"start the server with --model and one of {', '.join(ARCHITECTURES)}, or package.module:factory",
        )
    return resolve_model(settings.model)


def tasks(settings: Settings) -> list[str]:
    """Labels of the tasks offered: the embedded ones, those read from files where the operator named a data folder."""
    labels = [AS_CHECKPOINT_SAYS]
    for name in TASKS:
        parameters = inspect.signature(TASKS[name]).parameters
        if "root" in parameters and settings.data is None:
            continue
        flatten = parameters.get("flatten")
        labels += [name] if flatten is None else [f"{name}:flatten=True", f"{name}:flatten=False"]
    return labels


def read_task(settings: Settings, label: str, says: str | None) -> Task:
    """The task behind a label of ``tasks``. says: what the checkpoint's metadata names, such as ``digits:flatten=False``."""
    text = (says or "digits") if label == AS_CHECKPOINT_SAYS else label
    name, _, rest = text.partition(":")
    options = parse_options(rest)
    # Only the operator says where files are read, never a checkpoint's metadata.
    options.pop("root", None)
    if "root" in inspect.signature(TASKS[name]).parameters and settings.data is not None:
        options["root"] = settings.data
    return task(name, **options)
