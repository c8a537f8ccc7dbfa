"""Copies of a model to run other weights in: in eval mode, with flags of their own, and provably not reading the original.

``copy.deepcopy`` copies modules but not closures: a lambda or hook that names the model goes on reading the *original's*
weights, so that every state dict would seem to give the same outputs. ``watching`` refuses that.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.errors import WorkbenchError


def require_model(given: object) -> None:
    """Raise unless ``given`` is a module: a name, a class or a state dict in its place is named."""
    if not isinstance(given, nn.Module):
        kind = "class" if isinstance(given, type) else type(given).__name__
        advice = f"pass resolve_model({given!r}).build()" if isinstance(given, str) else ""
        raise WorkbenchError(f"The model is a {kind}", expected="a torch.nn.Module", next_step=advice)


def twin(model: nn.Module, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy in eval mode on ``device`` in ``dtype``; ``model`` keeps its weights, mode, device and flags."""
    return copy_sharing(model, ()).to(device=device, dtype=dtype).eval()


def copy_sharing(model: nn.Module, shared: Iterable[Tensor]) -> nn.Module:
    """``copy.deepcopy`` that keeps the tensors ``shared``, and takes what a module has computed and stored (an activation, the
    weight of the old ``weight_norm``) without its history, with which it cannot be copied."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    for module in model.modules():
        for leaf in pytree.tree_leaves(vars(module)):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                memo.setdefault(id(leaf), leaf.detach().clone())
    try:
        return copy.deepcopy(model, memo=memo)
    except Exception as error:
        raise WorkbenchError(
            f"The model cannot be copied ({type(error).__name__}: {str(error).strip().split(chr(10))[0][:300]})",
            expected="a module that copy.deepcopy copies",
            cause="a module holds something that cannot be copied, such as an open file, a lock or a generator",
            next_step="give that module a __deepcopy__, or take it out of the model",
        ) from error


class _Watch(TorchDispatchMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.foreign = {tensor.untyped_storage()._cdata: name for name, tensor in model.state_dict(keep_vars=True).items()}
        self.read: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                name = self.foreign.get(leaf.untyped_storage()._cdata)
                if name is not None:
                    self.read.setdefault(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def watching(model: nn.Module) -> Iterator[None]:
    """Run a twin of ``model`` inside; raises at the end if it read a tensor of ``model`` itself."""
    watch = _Watch(model)
    failure: Exception | None = None
    try:
        with watch:
            yield
    except Exception as error:
        # The original's dtype or device may differ from the twin's, so that reading it fails before anything can be said.
        if not watch.read:
            raise
        failure = error
    if watch.read:
        names = list(watch.read)
        raise WorkbenchError(
            f"A copy of the model still reads the original's weights ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})",
            expected="a forward pass that reaches its weights through self",
            cause="a lambda, closure or hook that was bound to the model when it was built",
            next_step="turn it into a method of the module",
        ) from failure


def outputs_of(
    model: nn.Module, states: Sequence[Mapping[str, Tensor]], inputs: Any, *, dtype: torch.dtype = torch.float64
) -> list[list[Tensor]]:
    """The float outputs of ``model`` under each of ``states``: per state one list, tuples and dicts flattened in order.

    An eval-mode copy runs in ``dtype`` on the device of the first state; ``model`` is not touched. inputs: a tensor, a tuple of
    positional arguments, or a dict of keyword arguments. Raises ``WorkbenchError`` where the copy reads the original's weights,
    and where no output is a float tensor.
    """
    device = next((tensor.device for tensor in states[0].values()), torch.device("cpu"))
    copied = twin(model, device=device, dtype=dtype)

    def cast(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)

    args, kwargs = pytree.tree_map(cast, _arguments(inputs))
    # A state may be the model's own: copies, made before the watch begins, tell its tensors from those a closure reads.
    placed = [{name: cast(tensor.detach().clone()) for name, tensor in state.items()} for state in states]
    with torch.no_grad(), watching(model):
        # The names of a tied weight are all given, and need not be one tensor.
        return [_float_leaves(functional_call(copied, state, args, kwargs, tie_weights=False)) for state in placed]


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}


def _float_leaves(outputs: Any) -> list[Tensor]:
    leaves = [
        leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.numel() and leaf.is_floating_point()
    ]
    if not leaves:
        raise WorkbenchError(
            "The model gave no float tensor, so its function cannot be compared", expected="logits or other float outputs"
        )
    return leaves


def main_output(output: Any) -> Tensor:
    """The tensor that a loss is taken of: the output itself, its ``.logits``, or the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise WorkbenchError(
        f"The model returned {type(output).__name__}, and no tensor of outputs was found in it",
        expected="a tensor, a tuple that begins with one, or something with .logits",
        next_step="wrap the model so that forward returns the logits",
    )
