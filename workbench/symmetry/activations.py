"""Activations: which values inside a model a group moves, and along which of their axes.

The walk that finds the factors types every value in the graph, not parameters alone: where a parameter's axis is moved by a factor,
the values that run along that axis are moved with it. ``activations`` gives their layouts under the names of a ``Symmetry``, and
``Reader`` runs a state dict through the graph and hands back the values asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from workbench.states import StateDict
from workbench.symmetry.assembly import layout_of
from workbench.symmetry.capture import INPUT, Capture, split_inputs
from workbench.symmetry.dependence import Dependence, join, joint_pairs
from workbench.symmetry.group import Symmetry
from workbench.symmetry.interpreter import Interpreter
from workbench.symmetry.layout import Layout, Leaf, Product, factors
from workbench.symmetry.trees import Atom, atoms
from workbench.symmetry.widened import INSTEAD


@dataclass(frozen=True)
class Activation:
    """One value of the graph: its node, operation and module path, and a layout per axis with the names of the symmetry.

    read: the factors that an operation sums over with a weight, reading this value (the inputs of the next layers).
    """

    node: str
    op: str
    module: str
    layouts: tuple[Layout, ...]
    read: frozenset[str] = frozenset()

    @property
    def factors(self) -> frozenset[str]:
        """The labels of its axes."""
        return frozenset(label for layout in self.layouts for label in factors(layout))


def activations(symmetry: Symmetry, captured: Capture) -> list[Activation]:
    """The values that some factor of ``symmetry`` moves, in the order they are computed.

    captured: the model the symmetry belongs to. Factors that this one walk does not see (exchanged branches, factors of several
    stretches, those of another model) label nothing.
    """
    walk = Interpreter(captured)
    walk.run()
    dependence = Dependence(walk.parameters, walk.records, walk.pointed)
    joint = joint_pairs(dependence, (axis for kind in walk.parameters.values() for axis in kind.axes))
    # A layout with a name for every atom, laid over the symmetry's layout of the same axis, says what the atom is called there.
    numbered: dict[Atom, str] = {}
    for kind in walk.parameters.values():
        for axis in kind.axes:
            for atom in atoms(join(axis, joint)):
                if not atom.pins:
                    numbered.setdefault(atom, f"atom {len(numbered)}")
    called: dict[str, str | None] = {}
    for name, kind in walk.parameters.items():
        entry = symmetry.tensors.get(name)
        if entry is None or tuple(entry.shape) != kind.shape or any(entry.orders):
            continue
        for axis, known in zip(kind.axes, entry.layouts, strict=True):
            for mine, theirs in _overlaid(layout_of(join(axis, joint), numbered), known):
                called[mine] = theirs if called.get(mine, theirs) == theirs else None
    names = {atom: label for atom, number in numbered.items() if (label := called.get(number)) is not None}
    typed = {node: tuple(layout_of(join(axis, joint), names) for axis in kind.axes) for node, kind in walk.typed()}
    labels = {node: {label for layout in layouts for label in factors(layout)} for node, layouts in typed.items()}
    from_inputs = _from_inputs(captured)
    read: dict[Node, set[str]] = {}
    for node in typed:
        weighed = {label for used in node.all_input_nodes if used not in from_inputs for label in labels.get(used, ())}
        for used in node.all_input_nodes:
            if used in from_inputs and used in labels:
                read.setdefault(used, set()).update((labels[used] & weighed) - labels[node])
    found = []
    for node, layouts in typed.items():
        value = node.meta.get("val")
        moved = node.op == "call_function" and node in from_inputs and labels[node] & symmetry.groups.keys()
        if moved and isinstance(value, Tensor) and value.is_floating_point():
            found.append(Activation(node.name, _op(node), _module(node), layouts, frozenset(read.get(node, ()))))
    return found


def _from_inputs(captured: Capture) -> set[Node]:
    """The nodes whose value depends on the model's inputs; the others are weights, perhaps transposed or normalised."""
    found: set[Node] = set()
    for node in captured.program.graph.nodes:
        own = node.op == "placeholder" and captured.roles[node.name][0] == INPUT
        if own or any(used in found for used in node.all_input_nodes):
            found.add(node)
    return found


def _overlaid(mine: Layout, theirs: Layout) -> Iterator[tuple[str, str]]:
    """Pairs of names at the same place of two layouts of one axis; none where they are built differently."""
    if isinstance(mine, Leaf) and isinstance(theirs, Leaf):
        if mine.factor is not None and theirs.factor is not None and mine.size == theirs.size:
            yield mine.factor, theirs.factor
        return
    if type(mine) is not type(theirs):
        return
    parts = [layout.children if isinstance(layout, Product) else layout.parts for layout in (mine, theirs)]  # type: ignore[union-attr]
    if [part.size for part in parts[0]] == [part.size for part in parts[1]]:
        for pair in zip(*parts, strict=True):
            yield from _overlaid(*pair)


def _op(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[-1] if schema is not None else str(node.target)


def _module(node: Node) -> str:
    stack = [entry[0] for entry in (node.meta.get("nn_module_stack") or {}).values()]
    return stack[-1].removeprefix("L['self'].").removeprefix("L['self']") if stack else ""


class Reader:
    """A captured graph run up to the last of the ``wanted`` nodes, at the shapes it was captured for, in the state's precision."""

    def __init__(self, captured: Capture, wanted: Collection[str], device: torch.device) -> None:
        self.captured, self.wanted, self.device = captured, set(wanted), device
        nodes, missing = [], set(wanted)
        for node in captured.program.graph.nodes:
            nodes.append(node)
            missing.discard(node.name)
            if not missing:
                break
        self._nodes = nodes
        last = {used: node for node in nodes for used in node.all_input_nodes}
        self._done_after: dict[Node, list[Node]] = {}
        for used, node in last.items():
            self._done_after.setdefault(node, []).append(used)

    def __call__(self, state: StateDict, inputs: Any) -> dict[str, Tensor]:
        """Node name -> its value. state: float tensors of one precision on the reader's device; inputs: as the model takes them."""
        module, values, out = self.captured.program.graph_module, {}, {}
        waiting = iter(pytree.tree_leaves(split_inputs(inputs)))
        dtype = next((t.dtype for t in state.values() if t.is_floating_point()), torch.float32)
        with torch.no_grad():
            for node in self._nodes:
                if node.op == "placeholder":
                    values[node] = self._placed(self._given(node, state, waiting), dtype)
                elif node.op == "get_attr":
                    values[node] = self._placed(attrgetter(node.target)(module), dtype)
                elif node.op == "call_function":
                    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                    values[node] = self._call(node.target, args, kwargs)
                if node.name in self.wanted:
                    out[node.name] = values[node]
                for used in self._done_after.get(node, ()):
                    del values[used]
        return out

    def _given(self, node: Node, state: Mapping[str, Tensor], waiting: Iterator[Any]) -> Any:
        role, name, value = self.captured.roles[node.name]
        if role == INPUT:
            return next(waiting)
        return state.get(name, value)

    def _placed(self, value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.detach().to(self.device)
        return value.to(dtype) if value.is_floating_point() else value

    def _call(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self.device}
        return INSTEAD.get(target, target)(*args, **kwargs)
