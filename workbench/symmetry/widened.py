"""A captured model run in float64: every cast to a lower precision is widened, so that rounding hides nothing.

Two ways to run it: the exported graph, which is fixed to one shape of inputs, and the module itself, which takes any it can.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.errors import WorkbenchError
from workbench.symmetry.capture import INPUT, MOVABLE, Capture, split_inputs
from workbench.symmetry.trial import own_random_numbers
from workbench.twins import copy_sharing


class GraphInFloat64:
    """The exported graph at the shapes it was exported for.

    ``torch.fx.Interpreter`` would do but for its process-wide record of the current node, which an export that runs in another
    thread at the same moment reads.
    """

    def __init__(self, captured: Capture, inputs: Any) -> None:
        self.captured = captured
        self.inputs = pytree.tree_leaves(split_inputs(inputs))
        self.constants = {
            placeholder: _double(value.detach().cpu()) if isinstance(value, Tensor) else value
            for placeholder, (role, _, value) in captured.roles.items()
            if role not in (MOVABLE, INPUT)
        }
        nodes = captured.program.graph.nodes
        last = {used: node for node in nodes for used in node.all_input_nodes}
        self._done_after: dict[Node, list[Node]] = {}
        for used, node in last.items():
            self._done_after.setdefault(node, []).append(used)
        # A graph that works in place must not change what the next run starts from.
        self._mutates = any(node.op == "call_function" and _is_mutable(node.target) for node in nodes)
        self._numbers = random_numbers(captured)

    def run(self, weights: Mapping[str, Tensor], peaks: list[float] | None = None) -> list[Tensor]:
        """The outputs that matter; ``peaks``: takes the largest finite entry of every result. The same at every call."""
        with self._numbers():
            return self._run(weights, peaks)

    def _run(self, weights: Mapping[str, Tensor], peaks: list[float] | None) -> list[Tensor]:
        waiting, module, values = iter(self.inputs), self.captured.program.graph_module, {}
        for node in module.graph.nodes:
            if node.op == "output":
                made = [value for value in map_arg(node.args[0], values.__getitem__) if isinstance(value, Tensor)]
                return [value for value, (_, _, matters) in zip(made, self.captured.outputs, strict=False) if matters]
            if node.op == "placeholder":
                role, name, _ = self.captured.roles[node.name]
                value = next(waiting) if role == INPUT else weights[name] if role == MOVABLE else self.constants[node.name]
                values[node] = value.clone() if self._mutates and isinstance(value, Tensor) else value
            elif node.op == "get_attr":
                values[node] = attrgetter(node.target)(module)
            else:
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = call_in_float64(node.target, args, kwargs, peaks)
            for used in self._done_after.get(node, ()):
                del values[used]
        raise AssertionError("a graph without an output")


class ModuleInFloat64:
    """A copy of the module itself, run without an export, at any shape it takes.

    It need not agree with the graph: a model may read its weights in ways that a copy does not follow (closures), or do
    something else for each type of a tensor. So compare the two first.
    """

    def __init__(self, captured: Capture, inputs: Any) -> None:
        self.captured = captured
        self.module = copy_sharing(captured.module, ()).eval().cpu().double()
        self._numbers = random_numbers(captured)
        self.args, self.kwargs = split_inputs(inputs)

    def at(self, inputs: Any) -> ModuleInFloat64:
        """The same module on other inputs."""
        other = copy.copy(self)
        other.args, other.kwargs = split_inputs(inputs)
        return other

    def run(self, weights: Mapping[str, Tensor], peaks: list[float] | None = None) -> list[Tensor]:
        """The outputs that matter, without the updated buffers. Raises whatever the model raises. The same at every call: what
        a run leaves in the module (a count, a cache, an updated buffer) is not there in the next."""
        module = copy_sharing(self.module, self.module.parameters())
        held = module.state_dict(keep_vars=True)
        args, kwargs = pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (self.args, self.kwargs))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of slower kernels for mixed types
            for name, weight in weights.items():
                held[name].copy_(weight)
            with self._numbers(), _InFloat64(peaks):
                output = module(*args, **kwargs)
        made = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        wanted = self.captured.outputs[len(self.captured.outputs) - len(made) :]
        return [value for value, (_, _, matters) in zip(made, wanted, strict=True) if matters]


def random_numbers(captured: Capture) -> Callable[[], AbstractContextManager[None]]:
    """Where a graph draws random numbers, the context in which it draws the same ones each time: a proof compares two runs."""
    targets = (node.target for node in captured.program.graph.nodes if node.op == "call_function")
    drawn = any(torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) for target in targets)
    return own_random_numbers if drawn else nullcontext


class _InFloat64(TorchDispatchMode):
    def __init__(self, peaks: list[float] | None) -> None:
        super().__init__()
        self.peaks = peaks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        narrow = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor) and v.dtype in _NARROW]
        if narrow and _is_mutable(func):
            raise WorkbenchError("The model works in place on a tensor that is not in float64")
        if narrow:
            args, kwargs = pytree.tree_map(_double, (args, kwargs))
        return call_in_float64(func, args, kwargs or {}, self.peaks)


_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def call_in_float64(target: Any, args: Any, kwargs: Mapping[str, Any], peaks: list[float] | None) -> Any:
    """``target(*args, **kwargs)`` with every floating type asked for, and every floating result, in float64."""
    if target is torch.ops.aten._assert_tensor_metadata.default:
        return None  # put in by export where a model converts types: it asks for the narrower type
    args = tuple(torch.float64 if arg in _NARROW else arg for arg in args) if any(type(a) is torch.dtype for a in args) else args
    if kwargs.get("dtype") in _NARROW:
        kwargs = {**kwargs, "dtype": torch.float64}
    result = pytree.tree_map(_double, INSTEAD.get(target, target)(*args, **kwargs))
    if peaks is not None:
        for value in pytree.tree_leaves(result):
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                peak = float(value.abs().max())
                if peak and math.isfinite(peak):
                    peaks.append(peak)
    return result


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype in _NARROW else value


def _is_mutable(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.is_mutable


def grouped_product(x: Tensor, w: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None) -> Tensor:
    """out[r] = x[r] · w[e] for the rows r from offs[e − 1] to offs[e]; the library's kernel takes lower precisions only."""
    starts = [0, *offs.tolist()]
    rows = [x[a:b] @ w[e] for e, (a, b) in enumerate(itertools.pairwise(starts))]
    return torch.cat([*rows, x.new_zeros(len(x) - starts[-1], w.shape[-1])])


INSTEAD = {
    torch.ops.aten._grouped_mm.default: grouped_product,
    # Views are of entries in row-major order; here an operand may lie otherwise in memory than when the graph was made.
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
}
