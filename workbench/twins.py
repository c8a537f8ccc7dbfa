"""Copies of a model to run other weights in: in eval mode, with flags of their own, and provably not reading the original.

``copy.deepcopy`` copies modules but not closures: a lambda or hook that names the model goes on reading the *original's*
weights, so that every state dict would seem to give the same outputs. ``watching`` refuses that.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
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
    return copy.deepcopy(model).to(device=device, dtype=dtype).eval()


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
