"""One run of a caller's model that leaves no trace: weights, inputs and the stream of random numbers stay what they were."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.twins import copy_sharing


def structural_copy(model: nn.Module) -> nn.Module:
    """A copy of the modules, in eval mode, that shares every parameter and buffer with ``model``: its flags are its own."""
    return copy_sharing(model, itertools.chain(model.parameters(), model.buffers())).eval()


def trial(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the model once. Raises whatever it raises; the inputs, parameters and buffers are then what they were, even where the
    model works in place (running statistics, the rows that ``nn.Embedding(max_norm=…)`` shortens)."""
    args, kwargs = pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
    held = [t for t in itertools.chain(model.parameters(), model.buffers()) if not t.is_meta]
    # Batch norm writes into its statistics without saying so. Parameters are many, and hardly ever written to.
    before = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    watch = _Writes(held)
    try:
        with own_random_numbers({t.device.index for t in held if t.is_cuda}), watch:
            output = model(*args, **kwargs)
    finally:
        for tensor, value in (*watch.kept, *before):
            if not torch.equal(tensor, value):
                tensor.copy_(value)
    _make_known(output)


@contextmanager
def own_random_numbers(devices: Iterable[int] = ()) -> Iterator[None]:
    """Random numbers from the same start each time, and the caller's stream as it was afterwards."""
    with torch.random.fork_rng(devices=list(devices)):
        torch.default_generator.manual_seed(0)
        yield


class _Writes(TorchDispatchMode):
    """Keeps the value of every tensor of ``held`` before it is first written to."""

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()
        self._held: dict[Any, list[Tensor]] = {}
        for tensor in held:
            self._held.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        self.kept: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable:
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    for tensor in self._held.pop(leaf.untyped_storage()._cdata, ()):
                        self.kept.append((tensor, tensor.detach().clone()))
        return func(*args, **(kwargs or {}))


def _make_known(output: Any) -> None:
    """Dataclasses are outputs like tuples and dicts, but torch.export must be told of each class once."""
    if dataclasses.is_dataclass(output) and type(output) not in pytree.SUPPORTED_NODES:
        torch.export.register_dataclass(type(output))
    held = vars(output).values() if dataclasses.is_dataclass(output) else output
    if isinstance(held, Mapping):
        held = held.values()
    if isinstance(output, tuple | list | Mapping) or dataclasses.is_dataclass(output):
        for value in held:
            _make_known(value)
