"""``Task``: what a model is judged on. Data lie in memory as tensors; iteration is deterministic and never shuffles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from workbench.errors import WorkbenchError, unknown_name
from workbench.registry import Registry
from workbench.states import fingerprint
from workbench.tasks.objectives import LOSSES, METRICS, PerExample

TASKS: Registry[Callable[..., Task]] = Registry("task", package="workbench.tasks", group="workbench.tasks")


@dataclass(frozen=True, eq=False)
class Task:
    """Named splits of examples, a loss and metrics.

    splits: name -> ``(x, y)`` with one entry per example along axis 0; NumPy arrays are taken as tensors.
    loss: ``"cross_entropy"`` (integer targets), ``"mse"``, or a function ``(outputs, targets) -> losses`` of shape ``(N,)``.
    metrics: names out of ``workbench.tasks.METRICS``; None is the accuracy where the targets are class labels, else nothing.
    notes: what was done to the data, in words. NumPy inputs in double precision become single, the precision of a network.

    Raises ``WorkbenchError`` where lengths or shapes disagree, a split is empty, or a value is not finite.
    """

    name: str
    splits: Mapping[str, tuple[Tensor, Tensor]]
    loss: str | PerExample = "cross_entropy"
    metrics: tuple[str, ...] | str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.splits, Mapping) or not all(isinstance(split, str) for split in self.splits):
            raise WorkbenchError(
                f"The splits of the task {self.name!r} are {type(self.splits).__name__}, {self.splits!r:.60}",
                expected='names -> pairs: splits={"train": (x, y), "test": (x, y)}',
            )
        if not self.splits:
            raise WorkbenchError(f"The task {self.name!r} has no splits", expected='splits={"train": (x, y), "test": (x, y)}')
        if not callable(self.loss) and self.loss not in LOSSES:
            raise unknown_name("loss", str(self.loss), LOSSES)
        splits = {split: _checked_pair(self.name, split, pair, self.loss) for split, pair in self.splits.items()}
        shapes = {split: tuple(x.shape[1:]) for split, (x, _) in splits.items()}
        if len(set(shapes.values())) > 1:
            raise WorkbenchError(
                f"The splits of {self.name!r} hold examples of different shapes: {shapes}", expected="one shape"
            )
        object.__setattr__(self, "splits", MappingProxyType(splits))
        labels = self.loss != "mse" and self.classes is not None
        default = ("accuracy",) if labels else ()
        metrics = default if self.metrics is None else (self.metrics,) if isinstance(self.metrics, str) else tuple(self.metrics)
        for metric in metrics:
            if metric not in METRICS:
                raise unknown_name("metric", str(metric), METRICS)
        if "accuracy" in metrics and self.classes is None:
            raise WorkbenchError(
                f"The metric 'accuracy' was asked for, and the targets of {self.name!r} are not class labels",
                expected="integer targets, or metrics=()",
            )
        object.__setattr__(self, "metrics", metrics)

    def split(self, name: str) -> tuple[Tensor, Tensor]:
        """``(x, y)`` of one split; raises ``WorkbenchError`` with the list of splits."""
        if name not in self.splits:
            raise unknown_name(f"split of the task {self.name!r}", name, self.splits)
        return self.splits[name]

    def chosen(self, names: Iterable[str] | str | None) -> tuple[str, ...]:
        """The splits ``names`` asks for, each once (None: all). Raises ``WorkbenchError`` for an unknown one and for none."""
        asked = tuple(self.splits) if names is None else (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
        if not asked:
            raise WorkbenchError("No split was asked for", expected=f"some of {', '.join(self.splits)}")
        for name in asked:
            self.split(name)
        return asked

    def size(self, split: str) -> int:
        """Number of examples in a split."""
        return self.split(split)[0].shape[0]

    def batches(self, split: str, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The split in order, in slices of ``size`` examples (the last may be shorter); None gives all of it at once."""
        x, y = self.split(split)
        step = len(x) if size is None else int(size)
        if step < 1:
            raise WorkbenchError(f"A batch of {size} examples was asked for", expected="at least 1")
        for start in range(0, len(x), step):
            yield x[start : start + step], y[start : start + step]

    def example_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example, ``(N,)``."""
        function = self.loss if callable(self.loss) else LOSSES[self.loss]
        return function(outputs, targets)

    def example_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Metric name -> value of each example, ``(N,)``."""
        return {metric: METRICS[metric](outputs, targets) for metric in self.metrics}

    def judge(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """ "loss" and every metric -> value of each example, ``(N,)``. Raises ``WorkbenchError`` where outputs and targets do not
        go together, and where a loss does not give one number per example (its mean over a batch would count twice)."""
        if self.loss == "cross_entropy" and outputs.dim() and outputs.shape[-1] < (self.classes or 0):
            raise WorkbenchError(
                f"The model has {outputs.shape[-1]} outputs, and the labels of {self.name!r} go up to {(self.classes or 0) - 1}",
                expected=f"{self.classes} outputs, one for each class",
                cause="a model of another task, or labels that do not begin at 0",
            )
        try:
            values = {"loss": self.example_losses(outputs, targets), **self.example_metrics(outputs, targets)}
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            raise WorkbenchError(
                f"The loss {self.loss_name!r} of the task {self.name!r} fails on outputs {tuple(outputs.shape)} and targets "
                f"{tuple(targets.shape)} {targets.dtype} ({type(error).__name__}: {str(error).strip()[:120]})",
                expected="outputs (N, classes) and labels (N,) for 'cross_entropy', outputs and targets of one shape for 'mse'",
                cause="targets of another shape, or a model of another task",
            ) from error
        for name, each in values.items():
            if not isinstance(each, Tensor) or each.shape != targets.shape[:1]:
                given = f"shape {tuple(each.shape)}" if isinstance(each, Tensor) else f"a {type(each).__name__}"
                raise WorkbenchError(
                    f"{self.loss_name if name == 'loss' else name!r} gives {given} for {len(targets)} examples",
                    expected=f"one number per example, shape ({len(targets)},)",
                    cause="a loss that takes the mean over the batch" if name == "loss" else "",
                    next_step='pass reduction="none", and take the mean over all axes but the first' if name == "loss" else "",
                )
        return values

    @property
    def loss_name(self) -> str:
        return self.loss if isinstance(self.loss, str) else getattr(self.loss, "__name__", type(self.loss).__name__)

    @cached_property
    def classes(self) -> int | None:
        """Number of classes (largest label + 1 over all splits), or None where targets are not integers."""
        targets = [y for _, y in self.splits.values()]
        return None if any(y.is_floating_point() for y in targets) else 1 + max(int(y.max()) for y in targets)

    @property
    def example_inputs(self) -> tuple[Tensor]:
        """A batch of two examples (of one, where there is no second), as discovery and export want it."""
        x, _ = next(iter(self.splits.values()))
        return (x[:2],)

    @property
    def device(self) -> torch.device:
        return next(iter(self.splits.values()))[0].device

    def to(self, device: str | torch.device) -> Task:
        """The same task with its tensors on ``device``."""
        return replace(self, splits={split: (x.to(device), y.to(device)) for split, (x, y) in self.splits.items()})

    def subset(self, split: str, n: int, seed: int = 0) -> Task:
        """A task whose ``split`` is cut to ``n`` examples drawn without replacement, in their order. Others stay whole."""
        x, y = self.split(split)
        if not 1 <= n <= len(x):
            raise WorkbenchError(
                f"{n} examples of the split {split!r} were asked for",
                expected=f"a number between 1 and {len(x)}, what it holds",
            )
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(x), generator=generator)[:n].sort().values.to(x.device)
        note = f"{split}: {n} of {len(x)} examples, seed {seed}"
        return replace(self, splits={**self.splits, split: (x[chosen], y[chosen])}, notes=(*self.notes, note))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over every split's names, shapes, types and bytes, and the names of loss and metrics."""
        tensors = {
            f"{split}/{part}": tensor for split, pair in self.splits.items() for part, tensor in zip("xy", pair, strict=True)
        }
        label = "|".join((self.loss_name, *self.metrics)).encode()
        return fingerprint({**tensors, "objectives": torch.frombuffer(bytearray(label), dtype=torch.uint8)})


def require_task(given: object) -> None:
    """Raise unless ``given`` is a ``Task``."""
    if not isinstance(given, Task):
        raise WorkbenchError(
            f"The task is a {type(given).__name__}",
            expected="a Task",
            next_step=f"pass task({given!r})" if isinstance(given, str) else 'pass Task("mine", splits={"train": (x, y)})',
        )


def _from_numpy(part: object, where: str) -> object:
    """A tensor of a NumPy array: float64, which NumPy makes of everything, becomes float32. Anything else as it is."""
    if not isinstance(part, np.ndarray):
        return part
    if part.dtype == np.float64:
        part = part.astype(np.float32)
    try:
        return torch.from_numpy(np.ascontiguousarray(part))
    except TypeError as error:
        raise WorkbenchError(f"{where} is an array of {part.dtype}", expected="an array of numbers") from error


def _checked_pair(task: str, split: str, pair: object, loss: object) -> tuple[Tensor, Tensor]:
    where = f"split {split!r} of the task {task!r}"
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise WorkbenchError(f"The {where} is a {type(pair).__name__}", expected="a pair (x, y) of tensors")
    x, y = (_from_numpy(part, f"{label} in the {where}") for label, part in zip("xy", pair, strict=True))
    for label, tensor in (("x", x), ("y", y)):
        if not isinstance(tensor, Tensor) or tensor.dim() == 0:
            raise WorkbenchError(
                f"{label} in the {where} is a {type(tensor).__name__}", expected="a tensor with one row per example"
            )
        if tensor.is_meta:
            raise WorkbenchError(f"{label} in the {where} has no values (meta device)", expected="a tensor with values")
    if len(x) != len(y):
        raise WorkbenchError(f"The {where} has {len(x)} inputs and {len(y)} targets", expected="as many targets as inputs")
    if len(x) == 0:
        raise WorkbenchError(f"The {where} is empty", expected="at least one example")
    if x.dtype == torch.uint8:
        raise WorkbenchError(
            f"x in the {where} holds bytes (uint8)",
            expected="numbers a network can read",
            cause="raw images that were not scaled",
            next_step="pass x.float() / 255",
        )
    for label, tensor in (("x", x), ("y", y)):
        bad = int((~torch.isfinite(tensor)).sum()) if tensor.is_floating_point() else 0
        if bad:
            raise WorkbenchError(f"{label} in the {where} has {bad} of {tensor.numel()} values that are NaN or infinite")
    if loss == "cross_entropy":
        if y.is_floating_point() or y.dtype == torch.bool:
            raise WorkbenchError(
                f"Targets of the {where} are {y.dtype}",
                expected="integer class labels for the loss 'cross_entropy'",
                next_step="pass y.long(), or loss='mse'",
            )
        if y.dim() > 1 and y.shape[1:] == (1,):
            raise WorkbenchError(
                f"Targets of the {where} have shape {tuple(y.shape)}", expected="(N,)", next_step="pass y.squeeze(1)"
            )
        y = y.long()
        if int(y.min()) < 0:
            raise WorkbenchError(f"Targets of the {where} go down to {int(y.min())}", expected="class labels from 0 on")
    return x.detach(), y.detach()
