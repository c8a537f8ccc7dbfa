"""One step for all seeds: stacked under ``vmap``, or one model after the other where a layer does not allow that.

Both give a seed the weights it would have had alone: optimizers act entry by entry, and each seed has its own batch.
"""

from __future__ import annotations

import copy
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from workbench.tasks import Task
from workbench.training.recipe import Recipe


class Trainer(Protocol):
    """Holds the networks of S seeds."""

    def step(self, x: Tensor, y: Tensor, lr: float) -> Tensor:
        """One optimizer step on batches ``x: (S, B, …)``, ``y: (S, B, …)``; gives the S mean losses before it."""
        ...

    def state(self, seed_index: int) -> dict[str, Tensor]:
        """A copy of one seed's state dict, on the CPU."""
        ...


class BatchedTrainer:
    """∇_θ of S networks at once: parameters stacked along a new axis 0, ``vmap(grad(loss))``, one optimizer over the stacks."""

    def __init__(self, models: list[nn.Module], task: Task, recipe: Recipe) -> None:
        self._names = list(models[0].state_dict())
        stacked, self._buffers = stack_module_state(models)
        self._parameters = {name: tensor.detach() for name, tensor in stacked.items()}
        skeleton = copy.deepcopy(models[0]).to("meta")

        def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return task.example_losses(functional_call(skeleton, (parameters, buffers), (x,)), y).mean()

        self._gradient = vmap(grad_and_value(loss))
        self._optimizer = recipe.make_optimizer(self._parameters.values())

    def step(self, x: Tensor, y: Tensor, lr: float) -> Tensor:
        gradients, losses = self._gradient(self._parameters, self._buffers, x, y)
        for name, tensor in self._parameters.items():
            tensor.grad = gradients[name]
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return losses

    def state(self, seed_index: int) -> dict[str, Tensor]:
        tensors = {**self._parameters, **self._buffers}
        return {name: tensors[name][seed_index].detach().cpu().clone() for name in self._names}


class LoopTrainer:
    """The same by ordinary autograd, one model after the other: for BatchNorm, which updates its statistics in place."""

    def __init__(self, models: list[nn.Module], task: Task, recipe: Recipe) -> None:
        self._models, self._task = models, task
        self._optimizers = [recipe.make_optimizer(model.parameters()) for model in models]

    def step(self, x: Tensor, y: Tensor, lr: float) -> Tensor:
        losses = []
        for model, optimizer, inputs, targets in zip(self._models, self._optimizers, x, y, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad(set_to_none=True)
            with torch.enable_grad():
                loss = self._task.example_losses(model(inputs), targets).mean()
                loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    def state(self, seed_index: int) -> dict[str, Tensor]:
        state = self._models[seed_index].state_dict()
        return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}


def slower_batched(model: nn.Module, device: torch.device) -> str | None:
    """The reason why stacking is allowed but does not pay, in words; None where it does.

    vmap turns S convolutions into one with S times the groups. On a CPU that took 1.4 to 2 times the seconds of S runs
    (four seeds of resnet, vgg and convnet, batch 100, one thread); linear layers gain by a factor of 2 instead.
    """
    if device.type == "cpu" and any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules()):
        return "stacked convolutions are slower on the CPU"
    return None


def why_not_batched(model: nn.Module) -> str | None:
    """The reason why seeds of ``model`` cannot be stacked, in words; None where nothing speaks against it."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            return f"{name or 'the model'} ({type(module).__name__}) updates running statistics in place"
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            return f"{name} is {first[id(parameter)]} (tied weights)"
    return None
