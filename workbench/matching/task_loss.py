"""The loss that matchers with labels look at: of weights, differentiable in them, on batches of one split of a task.

    barrier at the midpoint = L(½ (A + π(B))) − ½ (L(A) + L(B))         L: mean loss over a fixed set of examples
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from workbench.matching.data import MatchingData
from workbench.states import StateDict
from workbench.twins import main_output, twin, watching


class TaskLoss:
    """Mean loss of a state dict on examples of ``data.task``, in the precision of the network (float32 for half precision).

    BatchNorm normalises by the batch at hand: the running statistics of two networks say nothing of a mixture of their weights.
    judged: how many examples, drawn once from ``seed``, the fixed set holds.
    """

    def __init__(self, data: MatchingData, device: torch.device, *, judged: int, seed: int) -> None:
        assert data.task is not None
        assert data.split is not None
        self.task, self.device = data.task, device
        self.inputs, self.targets = (part.to(device) for part in data.task.split(data.split))
        self.model = twin(data.model, device=device)
        self.by_batch = [module for module in self.model.modules() if isinstance(module, _BatchNorm)]
        for module in self.by_batch:
            module.train()
        generator = torch.Generator().manual_seed(seed)
        count = min(judged, len(self.inputs))
        self.fixed = torch.randperm(len(self.inputs), generator=generator)[:count].sort().values.to(device)
        with watching(data.model), torch.no_grad():
            self.model(self.inputs[:2])

    def placed(self, state: StateDict) -> dict[str, Tensor]:
        """Copies of the tensors of a state dict to compute with."""
        half = (torch.float16, torch.bfloat16)
        return {
            name: tensor.detach().to(self.device, torch.float32 if tensor.dtype in half else tensor.dtype, copy=True)
            for name, tensor in state.items()
        }

    def __call__(self, weights: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Mean loss on the examples ``rows``; differentiable in ``weights``, which keep their values."""
        dtype = next((tensor.dtype for tensor in weights.values() if tensor.is_floating_point()), torch.float32)
        inputs = self.inputs[rows]
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        # BatchNorm in training mode writes its buffers: it gets copies of its own.
        parameters = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        given = {name: tensor if name in parameters else tensor.detach().clone() for name, tensor in weights.items()}
        outputs = main_output(functional_call(self.model, given, (inputs,), tie_weights=False))
        return self.task.judge(outputs, self.targets[rows])["loss"].mean()

    def judged(self, weights: Mapping[str, Tensor], *, batch_size: int = 1000) -> float:
        """Mean loss on the fixed set."""
        total = 0.0
        with torch.no_grad():
            for rows in self.fixed.split(batch_size):
                total += float(self(weights, rows)) * len(rows)
        return total / len(self.fixed)

    def batches(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """The rows of the split in an order drawn from ``generator``, in batches; a rest too small to be one is left out."""
        order = torch.randperm(len(self.inputs), generator=generator).to(self.device)
        size = min(size, len(order))
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]

    @property
    def words(self) -> str:
        """What is to be said of BatchNorm, or nothing."""
        return "BatchNorm normalised by the batch" if self.by_batch else ""


def midpoint(anchor: Mapping[str, Tensor], moved: Mapping[str, Tensor], at: float = 0.5) -> dict[str, Tensor]:
    """(1 − at) · anchor + at · moved for float tensors; integer buffers are the anchor's."""
    return {
        name: (1 - at) * tensor + at * moved[name].to(tensor) if tensor.is_floating_point() else tensor
        for name, tensor in anchor.items()
    }
