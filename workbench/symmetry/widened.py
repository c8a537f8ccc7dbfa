"""A captured graph run in float64: every cast to a lower precision is widened, so that rounding hides nothing."""

from __future__ import annotations

import itertools
import math
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree


class Widened:
    """Runs a graph in float64; remembers the largest finite entry of every result.

    ``torch.fx.Interpreter`` would do but for its process-wide record of the current node, which an export that runs in another
    thread at the same moment reads.
    """

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.peaks: list[float] = []
        last: dict[Node, Node] = {}
        for node in module.graph.nodes:
            for used in node.all_input_nodes:
                last[used] = node
        self._done_after: dict[Node, list[Node]] = {}
        for used, node in last.items():
            self._done_after.setdefault(node, []).append(used)

    def run(self, *inputs: Any) -> Any:
        """The graph's outputs for the values of its placeholders."""
        waiting, values = iter(inputs), {}
        for node in self.module.graph.nodes:
            if node.op == "output":
                return map_arg(node.args[0], values.__getitem__)
            if node.op == "placeholder":
                values[node] = next(waiting)
            elif node.op == "get_attr":
                values[node] = attrgetter(node.target)(self.module)
            else:
                values[node] = self._call(node, *map_arg((node.args, node.kwargs), values.__getitem__))
            for used in self._done_after.get(node, ()):
                del values[used]
        raise AssertionError("a graph without an output")

    def _call(self, node: Node, args: Any, kwargs: Any) -> Any:
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            return None  # put in by export where a model converts types: it asks for the narrower type
        if isinstance(kwargs.get("dtype"), torch.dtype) and kwargs["dtype"].is_floating_point:
            kwargs = {**kwargs, "dtype": torch.float64}
        return pytree.tree_map(self._widen, INSTEAD.get(node.target, node.target)(*args, **kwargs))

    def _widen(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            value = value.double()
            if value.numel():
                peak = float(value.abs().max())
                if math.isfinite(peak):
                    self.peaks.append(peak)
        return value


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
