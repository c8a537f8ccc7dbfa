"""A model written anew: the parameters of exchangeable branches stacked, and one branch mapped over them (``torch.vmap``).

The new model computes the same function of the same numbers, in another order of additions; it is captured and walked like any
other, and what is found of a stacked parameter is told of the tensors in it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from workbench.symmetry.branches import Branches
from workbench.symmetry.capture import EXPORT_LOCK, INPUT, MOVABLE, Capture, capture, split_inputs

_ATEN = torch.ops.aten


def capture_stacked(
    captured: Capture, classes: Sequence[Branches], example_inputs: Any
) -> tuple[Capture, dict[str, tuple[str, ...]]]:
    """The capture of the stacked model under the first model's names, and stack name -> the tensors in it.

    Raises WorkbenchError where the stacked model cannot be exported.
    """
    model = StackedModel(captured, classes)
    inputs = tuple(pytree.tree_leaves(split_inputs(example_inputs)))
    with EXPORT_LOCK, _no_loops():
        found = capture(model, inputs)
    names = {own: _stack_name(inside) for own, inside in model.names.items()}
    given = iter([name for role, name, _ in captured.roles.values() if role == INPUT])
    roles = {
        placeholder: (role, next(given) if role == INPUT else names.get(name, name), value)
        for placeholder, (role, name, value) in found.roles.items()
    }
    stacks = {names[own]: inside for own, inside in model.names.items() if len(inside) > 1}
    stacked = {name for inside in stacks.values() for name in inside}
    state = {name: tensor for name, tensor in captured.state.items() if name not in stacked}
    state |= {names[own]: getattr(model, own) for own, inside in model.names.items() if len(inside) > 1}
    kept = [(name, True) for name, _, matters in captured.outputs if matters]
    outputs = [(name, node, matters) for (name, matters), (_, node, _) in zip(kept, found.outputs, strict=True)]
    return replace(captured, program=found.program, roles=roles, state=state, outputs=outputs), stacks


def _stack_name(names: Sequence[str]) -> str:
    """``experts.*.up.weight``: the parts in which the names differ are starred."""
    parts = list(zip(*(name.split(".") for name in names), strict=False))
    return ".".join(column[0] if len(set(column)) == 1 else "*" for column in parts)


def _batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, _: float, eps: float) -> Any:
    """Batch norm in eval mode: the result, and two statistics that are empty."""
    shape = (-1, *(1,) * (x.dim() - 2))
    y = (x - mean.reshape(shape)) * (var.reshape(shape) + eps).rsqrt()
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape), x.new_zeros(0), x.new_zeros(0)


# Operations that torch.vmap has no rule for, in terms of such that have one.
MAPPED = {_ATEN._native_batch_norm_legit_no_training.default: _batch_norm}


@contextmanager
def _no_loops() -> Iterator[None]:
    """torch.vmap without a rule would loop over the branches, which hides what they have in common: let it raise instead."""
    functorch = torch._C._functorch
    enabled = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(enabled)


class StackedModel(nn.Module):
    """A captured model in which the parameters of every class are one stacked parameter. Calls take the flat inputs.

    names: own parameter name -> the state-dict names stacked in it (one name: not stacked).
    """

    def __init__(self, captured: Capture, classes: Sequence[Branches]) -> None:
        super().__init__()
        self._graph = (captured.program.graph_module,)  # in a tuple: it is read here, and is no part of this module
        self._classes = {branches.root: branches for branches in classes}
        self._outputs = [node for _, node, matters in captured.outputs if matters]
        self.names: dict[str, tuple[str, ...]] = {}
        self._sources: dict[Node, tuple[str, int | None]] = {}
        self._inputs: list[Node] = []
        rows = {node: row for branches in classes for row in branches.stacks.values() for node in row}
        placeholders = [node for node in captured.program.graph.nodes if node.op == "placeholder"]
        values = {node: captured.roles[node.name] for node in placeholders}
        own: dict[tuple[str, ...], str] = {}
        for node in placeholders:
            role, _, value = values[node]
            if role == INPUT:
                self._inputs.append(node)
                continue
            if role != MOVABLE:
                self._sources[node] = (f"constant{len(self._sources)}", None)
                self.register_buffer(self._sources[node][0], value, persistent=False)
                continue
            row = rows.get(node, (node,))
            stacked = tuple(values[n][1] for n in row)
            if stacked not in own:
                own[stacked] = f"parameter{len(own)}"
                tensors = [values[n][2].detach() for n in row]
                whole = torch.stack(tensors) if len(row) > 1 else tensors[0]
                self.register_parameter(own[stacked], nn.Parameter(whole, requires_grad=False))
                self.names[own[stacked]] = stacked
            self._sources[node] = (own[stacked], row.index(node) if len(row) > 1 else None)

    def __deepcopy__(self, memo: dict[int, Any]) -> StackedModel:
        twin = type(self).__new__(type(self))
        twin.__dict__ = {**self.__dict__, "_parameters": dict(self._parameters), "_buffers": dict(self._buffers)}
        return twin

    def stacked(self) -> Mapping[str, tuple[str, ...]]:
        """Own names of the stacked parameters only."""
        return {own: names for own, names in self.names.items() if len(names) > 1}

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        values: dict[Node, Any] = dict(zip(self._inputs, inputs, strict=True))
        order = {node: place for place, node in enumerate(self._graph[0].graph.nodes)}
        # Only what the outputs need: nodes inside the branches are computed by the map.
        waiting, needed = list(self._outputs), set()
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += self._reads(node)
        for node in sorted(needed, key=order.__getitem__):
            if node not in values:
                values[node] = self._value(node, values)
        return tuple(values[node] for node in self._outputs)

    def _reads(self, node: Node) -> list[Node]:
        branches = self._classes.get(node)
        if branches is None:
            return list(node.all_input_nodes)
        return [*branches.others, *branches.shared, *(read.source for read in branches.reads.values())]

    def _value(self, node: Node, values: Mapping[Node, Any]) -> Any:
        if node in self._sources:
            name, place = self._sources[node]
            return getattr(self, name) if place is None else getattr(self, name).select(0, place)
        if node in self._classes:
            return self._mapped(self._classes[node], values)
        if node.op == "get_attr":
            return operator.attrgetter(node.target)(self._graph[0])
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        return node.target(*args, **kwargs)

    def _mapped(self, branches: Branches, values: Mapping[Node, Any]) -> Tensor:
        count = len(branches.terms)
        mapped = {node: getattr(self, self._sources[node][0]) for node in branches.stacks}
        mapped |= {node: read.stacked(values[read.source], count) for node, read in branches.reads.items()}

        def branch(own: dict[Node, Tensor], number: Tensor) -> Tensor:
            here = {**{node: values[node] for node in branches.shared}, **own}
            for node in branches.body:
                args, kwargs = map_arg((node.args, node.kwargs), lambda used: here[branches.same[used]])
                if node in branches.numbers:
                    compare = torch.eq if node.target is _ATEN.eq.Scalar else torch.ne
                    here[node] = compare(args[0], number)
                else:
                    here[node] = MAPPED.get(node.target, node.target)(*args, **kwargs)
            return here[branches.same[branches.terms[0]]]

        keys = list(mapped)

        def flat(number: Tensor, *own: Tensor) -> Tensor:
            return branch(dict(zip(keys, own, strict=True)), number)

        out = torch.vmap(flat)(torch.arange(count), *mapped.values())
        if branches.root.target is _ATEN.cat.default:
            dim = (branches.root.args[1] if len(branches.root.args) > 1 else 0) % (out.dim() - 1)
            return out.movedim(0, dim).flatten(dim, dim + 1)
        total = out.sum(0)
        for other in branches.others:
            total = total + values[other]
        return total
