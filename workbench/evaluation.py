"""Loss and metrics of a state dict on a task, without touching the model.

    L(θ) = (1/N) Σ_i loss(f(θ, x_i), y_i)      summed in float64 over all N examples of a split, whatever the batches

The model runs in eval mode on a copy, through ``torch.func.functional_call``: the caller's weights, mode, device and
``requires_grad`` flags stay as they are, and several threads may evaluate one model at once. Half-precision weights are
evaluated in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from workbench.devices import resolve_device
from workbench.errors import WorkbenchError
from workbench.states import StateDict, require_state
from workbench.tasks import Task, require_task
from workbench.twins import main_output, require_model, twin, watching

# Input numbers per batch. On a CPU activations should stay in the cache (a small MNIST CNN is 1.5 times slower at 2^21); a GPU
# wants large batches, and 2^22 numbers keep the activations of the convolutions met here within a few GB.
BATCH_NUMBERS = {"cpu": 2**18, "cuda": 2**22}

# Two runs of a deterministic model may differ by the order of atomic additions on a GPU, a few times 1e-7 of the scale.
SAME = 1e-5


class Evaluator:
    """A model made ready for many evaluations on one task: ``Evaluator(model, task)(state)``.

    splits: names (default: all of the task); batch_size: None chooses by the size of an example; device: "auto" is CUDA where
    there is one; check: refuse a model that is not deterministic in eval mode (``require_deterministic``).
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        *,
        splits: Iterable[str] | None = None,
        batch_size: int | None = None,
        device: str | torch.device = "auto",
        check: bool = True,
    ) -> None:
        require_model(model)
        require_task(task)
        self.device = resolve_device(device)
        self.splits = task.chosen(splits)
        self.task = task.to(self.device)
        self.batch_size = batch_size
        self._model = twin(model, device=self.device)
        self._names = set(self._model.state_dict())
        if check:
            with watching(model):
                require_deterministic(self._model, self.task.example_inputs)

    def __call__(self, state: StateDict) -> dict[tuple[str, str], float]:
        """(split, "loss" or metric name) -> mean over the split's examples. NaN and infinite losses are passed on as they are."""
        self._require_fits(state)
        weights = {name: self._placed(tensor) for name, tensor in state.items()}
        dtype = next((t.dtype for t in weights.values() if t.is_floating_point()), torch.float32)
        out: dict[tuple[str, str], float] = {}
        for split in self.splits:
            sums: dict[str, Tensor] = {}
            count = 0
            for inputs, targets in self.task.batches(split, self.batch_size or self._batch(split)):
                with torch.no_grad():
                    x = inputs.to(dtype) if inputs.is_floating_point() else inputs
                    # The names of a tied weight are all given, and need not be one tensor.
                    outputs = main_output(functional_call(self._model, weights, (x,), tie_weights=False))
                    if outputs.dtype in (torch.float16, torch.bfloat16):
                        outputs = outputs.float()
                    values = self.task.judge(outputs, targets)
                count += inputs.shape[0]
                for metric, each in values.items():
                    sums[metric] = sums.get(metric, 0.0) + each.sum(dtype=torch.float64)
            out |= {(split, metric): float(total) / count for metric, total in sums.items()}
        return out

    def _batch(self, split: str) -> int:
        x, _ = self.task.split(split)
        return max(1, min(len(x), BATCH_NUMBERS.get(self.device.type, 2**20) // max(1, x[0].numel())))

    def _placed(self, tensor: Tensor) -> Tensor:
        half = tensor.dtype in (torch.float16, torch.bfloat16)
        return tensor.detach().to(self.device, torch.float32 if half else tensor.dtype)

    def _require_fits(self, state: StateDict) -> None:
        require_state(state, "judged")
        missing, unknown = sorted(self._names - set(state)), sorted(set(state) - self._names)
        if missing or unknown:
            raise WorkbenchError(
                f"The state dict does not fit the model (missing: {', '.join(missing[:4]) or 'nothing'}; "
                f"unknown: {', '.join(unknown[:4]) or 'nothing'})",
                expected=f"the {len(self._names)} tensors of the model by name, since a missing one would run with random weights",
                next_step="build the model the checkpoint belongs to, or load the file with load_checkpoint, which mends prefixes",
            )


def evaluate(
    model: nn.Module,
    state: StateDict,
    task: Task,
    *,
    splits: Iterable[str] | None = None,
    batch_size: int | None = None,
    device: str | torch.device = "auto",
) -> dict[tuple[str, str], float]:
    """(split, metric) -> value of ``state`` in ``model`` on ``task``; the metric "loss" is always there. See ``Evaluator``."""
    return Evaluator(model, task, splits=splits, batch_size=batch_size, device=device)(state)


def require_deterministic(model: nn.Module, inputs: Any) -> None:
    """Raise unless an eval-mode copy of ``model`` gives the same outputs twice and judges every example by itself.

    inputs: a tuple of positional arguments, or one tensor. The message names the module: one that stays in training mode after
    ``.eval()``, a BatchNorm without running statistics, or the first whose outputs differ for equal inputs.
    """
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    copied = twin(model)
    for name, module in copied.named_modules():
        if module.training:
            raise _stochastic(
                name, module, "it stays in training mode after .eval()", "let its train(mode) set self.training = mode"
            )
        if isinstance(module, _BatchNorm) and not module.track_running_stats and module.running_mean is None:
            raise _stochastic(
                name,
                module,
                "it keeps no running statistics, so the loss of an example depends on the batch it is in",
                "train it with track_running_stats=True, or use GroupNorm",
            )
    runs: list[dict[str, Tensor]] = []
    results: list[list[Tensor]] = []
    for _ in range(2):
        seen: dict[str, Tensor] = {}
        hooks = [module.register_forward_hook(_record(seen, name)) for name, module in copied.named_modules() if name]
        try:
            with torch.no_grad():
                results.append(_tensors(copied(*args)))
        finally:
            for hook in hooks:
                hook.remove()
        runs.append(seen)
    if all(map(_same, *results)):
        return
    modules = dict(copied.named_modules())
    # Hooks fire as modules finish, so the first that differs is the innermost culprit.
    culprit = next((name for name, first in runs[0].items() if name in runs[1] and not _same(first, runs[1][name])), "")
    raise _stochastic(
        culprit,
        modules[culprit],
        "two runs on the same inputs gave different outputs",
        "remove the randomness, e.g. pass training=self.training to functional.dropout",
    )


def _record(seen: dict[str, Tensor], name: str) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        tensors = _tensors(output)
        if tensors and name not in seen:
            seen[name] = tensors[0]

    return hook


def _tensors(output: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def _same(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape:
        return False
    scale = float(first.abs().max()) if first.numel() else 0.0
    return torch.allclose(first.double(), second.double(), rtol=0, atol=SAME * scale, equal_nan=True)


def _stochastic(name: str, module: nn.Module, why: str, mend: str) -> WorkbenchError:
    where = f"module {name!r} ({type(module).__name__})" if name else f"the model itself ({type(module).__name__})"
    return WorkbenchError(
        f"The model cannot be judged: {where}: {why}",
        expected="a model whose eval-mode output depends on its inputs and weights alone",
        next_step=mend,
    )
