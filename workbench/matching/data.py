"""What a matcher may look at beside the weights: the model and examples, and where it has them, targets and a loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from workbench.errors import WorkbenchError
from workbench.tasks import Task
from workbench.twins import outputs_of

NO_DATA = "no data used"


@dataclass(frozen=True, eq=False)
class MatchingData:
    """A model with examples for it.

    inputs: a tuple of positional tensors with one entry per example along axis 0, or a dict of keyword tensors;
    task: where targets are known; then ``split`` says which of its splits is used, and inputs are those of that split.
    """

    model: nn.Module
    inputs: tuple[Any, ...] | dict[str, Any]
    task: Task | None = None
    split: str | None = None

    @classmethod
    def of_task(cls, model: nn.Module, task: Task) -> MatchingData:
        """The examples a model may be fitted on: the split "train", or the first there is."""
        split = "train" if "train" in task.splits else next(iter(task.splits))
        return cls(model, (task.split(split)[0],), task, split)

    @property
    def size(self) -> int:
        """Number of examples."""
        first = next((part for part in self._parts() if isinstance(part, Tensor) and part.dim()), None)
        if first is None:
            raise WorkbenchError("The inputs hold no tensor with examples along its first axis")
        return first.shape[0]

    def _parts(self) -> Iterator[Any]:
        yield from self.inputs.values() if isinstance(self.inputs, dict) else self.inputs

    def batches(self, size: int) -> Iterator[tuple[Any, ...] | dict[str, Any]]:
        """The inputs in order, in slices of ``size`` examples along axis 0; anything else is handed on whole."""
        count = self.size

        def cut(part: Any, start: int) -> Any:
            return part[start : start + size] if isinstance(part, Tensor) and part.dim() and part.shape[0] == count else part

        for start in range(0, count, size):
            if isinstance(self.inputs, dict):
                yield {name: cut(part, start) for name, part in self.inputs.items()}
            else:
                yield tuple(cut(part, start) for part in self.inputs)

    def require_runs(self) -> None:
        """Raise, in words, where the model does not take the first two examples."""
        batch = next(self.batches(2))
        leaves = list(batch.values()) if isinstance(batch, dict) else list(batch)
        try:
            outputs_of(self.model, [dict(self.model.state_dict())], batch)
        except WorkbenchError:
            raise
        except Exception as error:
            shapes = ", ".join(f"{tuple(leaf.shape)} {leaf.dtype}" for leaf in leaves if isinstance(leaf, Tensor))
            where = f"of the task {self.task.name!r}" if self.task is not None else "given"
            raise WorkbenchError(
                f"The model fails on the inputs {where} ({type(error).__name__}: {str(error).strip().splitlines()[0][:200]})",
                expected=f"inputs that the model takes; got {shapes}",
                cause="a task or inputs of another model",
            ) from error

    def words(self, count: int | None = None) -> str:
        """What was used, in words."""
        number = self.size if count is None else count
        return f"{number} examples " + (f"of {self.task.name}/{self.split}" if self.task is not None else "given as inputs")


def require_data(data: MatchingData | None, who: str, *, labels: bool = False) -> MatchingData:
    """``data``, or an error that says what the matcher ``who`` lacks and what works without it."""
    if data is not None and (data.task is not None or not labels):
        return data
    raise WorkbenchError(
        f"{who} was called without {'a task' if data is not None else 'data'}",
        expected="align(..., model=model, task=task): a model, and examples with targets"
        if labels
        else "align(..., model=model, inputs=inputs), or task=task: a model, and examples to run through it",
        cause="the checkpoints alone say nothing about activations or losses",
        next_step='matchers that need no data: "weights", "spectral", "frank-wolfe"',
    )
