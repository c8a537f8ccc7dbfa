"""Train one network per seed, all in one batched run where the architecture allows it, and write the checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workbench.cli import console, inputs
from workbench.disk import output_folder
from workbench.errors import WorkbenchError

HELP = "train one network per seed"
RECIPE = (
    "epochs",
    "batch_size",
    "optimizer",
    "lr",
    "weight_decay",
    "momentum",
    "schedule",
    "warmup_epochs",
    "save_epochs",
)
SHOWN = ("seed", "epoch", "train_accuracy", "test_accuracy")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a built-in architecture: name or name:key=value,…")
    inputs.add_task(parser)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="one network per seed (default: 0 1)")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--optimizer", help="adam, adamw or sgd")
    parser.add_argument("--lr", type=float, help="learning rate")
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--momentum", type=float)
    parser.add_argument("--schedule", help="constant or cosine")
    parser.add_argument("--warmup-epochs", type=int)
    parser.add_argument("--save-epochs", type=int, nargs="+", help="also keep the networks as they are after these epochs")
    inputs.add_device(parser)
    parser.add_argument("--out", metavar="DIR", default=".", help="folder for the checkpoints (default: the current one)")


def run(arguments: argparse.Namespace) -> int:
    from workbench.architectures import Architecture
    from workbench.checkpoints import save_checkpoint
    from workbench.training import train

    architecture = inputs.read_architecture(arguments.model)
    if not isinstance(architecture, Architecture):
        raise WorkbenchError(
            f"{architecture} is not built in", expected="a built-in architecture", next_step="train it with your own code"
        )
    task = inputs.read_task(arguments, None)
    inputs.use_threads(arguments, architecture.parameters())
    recipe = {name: getattr(arguments, name) for name in RECIPE if getattr(arguments, name) is not None}
    folder = output_folder(arguments.out)
    with console.progress() as report:
        made = train(architecture, task, seeds=tuple(arguments.seeds), device=arguments.device, progress=report, **recipe)
    rows, written = [], []
    for checkpoint in made:
        path = (
            folder
            / f"{_stem(task.name, architecture.name, checkpoint.metadata, with_epoch=bool(arguments.save_epochs))}.safetensors"
        )
        metadata = {**checkpoint.metadata, "task": arguments.task}  # with its options, so that the file can be judged again
        save_checkpoint(checkpoint.state, path, metadata=metadata)
        written.append({"file": str(path), **metadata})
        rows.append([str(path), *(checkpoint.metadata.get(name, "") for name in SHOWN)])
    notes = sorted({note for checkpoint in made for note in checkpoint.notes})
    text = [console.table(["file", *(name.replace("_", " ") for name in SHOWN)], rows), *notes]
    console.answer(
        arguments,
        {"model": architecture.describe(), "task": task.name, "checkpoints": written, "notes": notes},
        "\n".join(text),
    )
    return 0


def _stem(task: str, architecture: str, metadata: Mapping[str, str], *, with_epoch: bool) -> str:
    """``digits-mlp-seed0``, with the epoch behind it where the training was saved on the way."""
    return f"{task}-{architecture}-seed{metadata['seed']}" + (f"-epoch{metadata['epoch']}" if with_epoch else "")
