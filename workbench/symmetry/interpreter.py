"""The abstract walk over the graph: one rule per operation, three ways to make a result.

A rule may only use ``loop`` (axes with equal keys are one loop), ``move`` (entries change place) or ``opaque`` (nothing is
known: everything it touches is pinned). Each of the three writes the record beside the type, so that the two cannot disagree.
An operation without a rule is opaque and is reported by name: never unlinked, never guessed.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from workbench.progress import Progress, Reporter
from workbench.symmetry.capture import CONSTANT, INPUT, MOVABLE, Capture
from workbench.symmetry.pointers import Pointer, Step, pointing
from workbench.symmetry.records import Deferred, Keys, Record, TensorType
from workbench.symmetry.rules import RULES, TAKE_INDICES, NoRule
from workbench.symmetry.trees import ONE, Atom, Reason, Tree, Uni, atoms, fresh, normalise, pin, pinned, stretches, uniform, unify

Operand = tuple[TensorType, Sequence[Hashable | None]]


class Interpreter:
    """Walks a captured graph once and keeps the type of every tensor, the records, and the operations it did not know."""

    def __init__(self, capture: Capture, progress: Progress | None = None) -> None:
        self.capture = capture
        self.records: list[Record] = []
        self.unknown: Counter[str] = Counter()
        self.parameters: dict[str, TensorType] = {}
        self.outputs: list[TensorType] = []  # those that matter
        self.pointed: list[Tree] = []  # axes that some indices point into
        self.sorted_rows: list[tuple[Tree, Pointer]] = []  # rows sorted by indices, and those indices
        self._places: dict[int, Tree] = {}
        self.orders: dict[TensorType, Tree] = {}  # an order that sorts rows -> the sorted rows
        self.node: Node | None = None
        self._types: dict[Node, Any] = {}
        self._progress = progress

    # -- the walk

    def run(self) -> None:
        nodes = list(self.capture.program.graph.nodes)
        report = Reporter(self._progress, "discovering symmetry", len(nodes))
        for node in nodes:
            self.node = node
            if node.op == "placeholder":
                self._types[node] = self._placeholder(node)
            elif node.op == "call_function":
                self._types[node] = self._call(node)
            elif node.op == "get_attr":
                self._types[node] = self._constant(getattr(self.capture.program.graph_module, node.target), str(node.target))
            report.step()
        for name, node, matters in self.capture.outputs:
            if matters:
                self.node = node
                for tensor in pytree.tree_leaves(self._types[node]):
                    if isinstance(tensor, TensorType):
                        self.outputs.append(tensor)
                        for axis, tree in enumerate(tensor.axes):
                            pin(tree, Reason(f"axis {axis} of the model's output {name}"))
                        self.use_as_numbers(tensor)
        self.settle()

    def settle(self) -> None:
        """Rows that were sorted by indices move with the data: if their order was asked for, the indices' axis is pinned.

        It was if they were pinned or taken apart, or run together with a parameter's axis or with rows that were sorted otherwise.
        """
        carried = {atom for kind in self.parameters.values() for axis in kind.axes for atom in atoms(axis)}
        found = [normalise(rows) for rows, _ in self.sorted_rows]
        why = Reason("rows sorted by the indices are used in their order")
        for rows, (_, pointer) in zip(found, self.sorted_rows, strict=True):
            if not isinstance(rows, Atom) or rows.pins or rows in carried or found.count(rows) > 1:
                pin(rows, why)
                pin(pointer.tree, why)

    def _placeholder(self, node: Node) -> TensorType | None:
        role, name, value = self.capture.roles[node.name]
        if not node.users or not isinstance(node.meta.get("val"), Tensor):
            return None
        shape = tuple(node.meta["val"].shape)
        if role == MOVABLE:
            if name not in self.parameters:
                self.parameters[name] = TensorType([fresh(size) for size in shape], name)
            return self.parameters[name]
        if role == CONSTANT:
            return self._constant(value, name)
        assert role == INPUT
        return TensorType([pinned(n, Reason(f"axis {i} of the model's input {name}")) for i, n in enumerate(shape)], name)

    def _constant(self, value: Any, name: str) -> TensorType | None:
        """A tensor known by value: an axis along which it is exactly constant is ``Uni``, any other has a fixed order."""
        if not isinstance(value, Tensor):
            return None
        value = value.detach()
        axes: list[Tree] = []
        for axis, size in enumerate(value.shape):
            same = not value.is_meta and value.numel() > 0 and bool((value == value.narrow(axis, 0, 1)).all())
            axes.append(uniform(size) if same else pinned(size, Reason(f"axis {axis} of the constant {name} varies")))
        return TensorType(axes, name, value)

    def _call(self, node: Node) -> Any:
        if node.target is operator.getitem:
            source, index = node.args
            held = self._types[source]
            return held[index] if isinstance(held, tuple | list) else held
        args = pytree.tree_map(lambda a: self._types.get(a) if isinstance(a, Node) else a, node.args)
        kwargs = pytree.tree_map(lambda a: self._types.get(a) if isinstance(a, Node) else a, node.kwargs)
        if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(node.meta.get("val"))):
            return None
        operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, TensorType)]
        name = self.op
        if all(operand.value is not None for operand in operands) and not name.startswith("empty"):
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                return self.opaque(operands, "random numbers, no two of which are alike at every call, fix the order")
            return self._evaluate(node, args, kwargs, operands)
        if name in RULES:
            if name not in TAKE_INDICES:
                for operand in operands:
                    self.use_as_numbers(operand)
            try:
                result = RULES[name](self, args, kwargs)
                self._require_shapes(result)
                return result
            except NoRule as reason:
                name = f"{name} ({reason})"
            except Exception as error:  # a rule's own fault costs completeness, never the answer
                name = f"{name} (its rule failed: {type(error).__name__}: {error})"
        self.unknown[name] += 1
        return self.opaque(operands)

    def _evaluate(self, node: Node, args: Any, kwargs: Any, operands: list[TensorType]) -> Any:
        """Causal masks, position tables, aranges: nothing of the model enters, so the value itself is the best type.

        A model on meta makes its constants there, without values; here they are made on the CPU, unless a buffer on meta enters.
        """
        unknown = any(operand.value.is_meta for operand in operands)
        place = _on_meta if unknown else _off_meta
        concrete = pytree.tree_map(lambda a: place(a.value if isinstance(a, TensorType) else a), (args, kwargs))
        try:
            with torch.no_grad():
                value = node.target(*concrete[0], **concrete[1])
        except Exception:
            self.unknown[f"{self.op} (constant could not be evaluated)"] += 1
            return self.opaque(operands)
        return pytree.tree_map(lambda v: self._constant(v, self._made_of(operands)) if isinstance(v, Tensor) else v, value)

    def _made_of(self, operands: list[TensorType]) -> str:
        """What a computed constant is called in a reason: the buffers it comes from and the last operation, or where it is made."""
        sources = dict.fromkeys(operand.name.partition(" (")[0] for operand in operands if operand.name)
        if sources:
            return f"{' and '.join(list(sources)[:2])} ({self.op})"
        return f"{self.op} in {self.module}" if self.module else self.op

    def _require_shapes(self, result: Any) -> None:
        found = [leaf.shape for leaf in pytree.tree_leaves(result) if isinstance(leaf, TensorType)]
        expected = [tuple(leaf.shape) for leaf in pytree.tree_leaves(self.node.meta["val"]) if isinstance(leaf, Tensor)]
        if found != expected[: len(found)]:
            raise AssertionError(f"the rule for {self.op} made shapes {found}, the graph has {expected}")

    def typed(self) -> Iterator[tuple[Node, TensorType]]:
        """Every node with the type of its value, after the walk; views that nothing needed are left out."""
        for node, kind in self._types.items():
            if isinstance(kind, TensorType) and not (isinstance(kind, Deferred) and kind.pending):
                yield node, kind

    # -- what rules see

    @property
    def op(self) -> str:
        """Name of the current operation without namespace and overload, e.g. "convolution"."""
        target = self.node.target
        schema = getattr(target, "_schema", None)
        return schema.name.split("::")[-1] if schema is not None else getattr(target, "__name__", str(target))

    @property
    def module(self) -> str:
        """Path of the innermost module the current operation came from."""
        stack = self.node.meta.get("nn_module_stack") or {}
        paths = [entry[0] if isinstance(entry, tuple) else str(entry) for entry in stack.values()]
        return paths[-1].removeprefix("L['self'].").removeprefix("L['self']") if paths else ""

    def why(self, text: str) -> Reason:
        return Reason(text, self.op, self.module)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the current operation's first result."""
        return tuple(pytree.tree_leaves(self.node.meta["val"])[0].shape)

    def use_as_numbers(self, tensor: TensorType) -> None:
        """The values of ``tensor`` are used for more than looking up: what they point into keeps its order."""
        if tensor.points is not None:
            pin(tensor.points.tree, self.why("positions along the axis are named"))

    def places_of(self, size: int) -> Tree:
        """The fixed axis of places in stacks of ``size``."""
        if size not in self._places:
            self._places[size] = pinned(size, Reason("entries of a stack are taken one by one"))
        return self._places[size]

    def point(self, tensor: TensorType, tree: Tree) -> TensorType:
        """Say that the values of ``tensor``, new indices made by this operation, point into ``tree``."""
        if any(isinstance(part, Uni) for part in stretches(tree)):
            pin(tree, self.why("positions along a constant stretch are named"))
            return tensor
        self.pointed.append(tree)
        tensor._points = pointing(tree, self.node.name, tensor.shape)
        return tensor

    def loop(self, operands: Sequence[Operand], *results: Sequence[Hashable | None], points: Pointer | None = None) -> Any:
        """out[o] = Φ over reduced loops of φ(operands at loop indices), Φ symmetric: axes with equal keys are unified.

        operands: (type, one key per axis), None for a broadcast axis; results: keys per result axis, None for size 1; points: what
        the values of the one result point into, where they are indices that were copied.
        """
        merged: dict[Hashable, Tree] = {}
        for tensor, keys in operands:
            for axis, key in zip(tensor.axes, keys, strict=True):
                if key is not None:
                    merged[key] = unify(merged[key], axis, self.why("the two run together")) if key in merged else axis
        made = self._result("loop", operands, [[ONE if k is None else merged[k] for k in keys] for keys in results], results)
        if points is not None:
            made._points = points
        return made

    def loop_free(self, axes: Sequence[Tree]) -> TensorType:
        """A result that depends on no operand's values (a filled tensor, an empty statistic)."""
        return self._result("loop", (), [list(axes)], [(None,) * len(axes)])

    def move(
        self,
        tensor: TensorType,
        keys: Keys,
        axes: Sequence[Tree],
        result_keys: Keys,
        *,
        step: Step | None = None,
        cut: tuple[int, tuple[int, ...]] | None = None,
    ) -> TensorType:
        """A result whose entries are ``tensor``'s in other places (view, permute, slice).

        step: what that does to pointers; None: they are lost, and an axis that the values point into is
        pinned; cut: see ``Record``.
        """
        made = self._result("move", [(tensor, keys)], [list(axes)], [result_keys], cut)
        if step is not None:
            made._points = None if tensor.points is None else step(tensor.points)
            made._virtual = tuple(moved for moved in map(step, tensor.virtual) if moved is not None)
        if made.points is None:
            self.use_as_numbers(tensor)
        return made

    def join(
        self,
        operands: Sequence[Operand],
        axes: Sequence[Tree],
        result_keys: Keys,
        cut: tuple[int, tuple[int, ...]],
        *,
        points: Pointer | None = None,
    ) -> TensorType:
        """A result whose entries are those of several operands side by side (concatenation); cut: see ``Record``;
        points: where all of them are indices into one axis."""
        made = self._result("move", operands, [list(axes)], [result_keys], cut)
        made._points = points
        if points is None:
            for tensor, _ in operands:
                self.use_as_numbers(tensor)
        return made

    def renamed(self, tensor: TensorType, other: TensorType) -> Record:
        """The record that two objects stand for one tensor."""
        keys = tuple(range(len(tensor.axes)))
        return Record("move", self.op, self.module, ((tensor, keys),), ((other, keys),))

    def _result(self, kind: str, operands: Sequence[Operand], axes: list[list[Tree]], keys: Sequence[Any], cut: Any = None) -> Any:
        made = [TensorType(list(trees), self.node.name) for trees in axes]
        if kind == "loop":
            for tensor, result_keys in zip(made, keys, strict=True):
                held = [v.through(k, result_keys) for operand, k in operands for v in operand.virtual]
                tensor._virtual = tuple({(v.token, v.digits, v.of): v for v in held if v is not None and v.of}.values())
        self.records.append(
            Record(
                kind,
                self.op,
                self.module,
                tuple((tensor, tuple(k)) for tensor, k in operands),
                tuple((tensor, tuple(k)) for tensor, k in zip(made, keys, strict=True)),
                self.node,
                cut,
            )
        )
        return made[0] if len(made) == 1 else tuple(made)

    def opaque(self, operands: Sequence[TensorType], text: str = "an operation without a rule fixes the order") -> Any:
        """Pin every axis of every operand; results get fresh fixed axes (never the operands' trees, which may hold ``Uni``)."""
        reason = self.why(text)
        for operand in operands:
            self.use_as_numbers(operand)
            for axis in operand.axes:
                pin(axis, reason)
        values = [leaf for leaf in pytree.tree_leaves(self.node.meta["val"]) if isinstance(leaf, Tensor)]
        made = [TensorType([pinned(size, reason) for size in value.shape], self.node.name) for value in values]
        self.records.append(
            Record(
                "opaque",
                self.op,
                self.module,
                tuple((t, (None,) * len(t.axes)) for t in operands),
                tuple((t, (None,) * len(t.axes)) for t in made),
            )
        )
        return tuple(made) if isinstance(self.node.meta["val"], tuple | list) else made[0]


def _on_meta(argument: Any) -> Any:
    return argument.to("meta") if isinstance(argument, Tensor) else argument


def _off_meta(argument: Any) -> Any:
    return torch.device("cpu") if isinstance(argument, torch.device) and argument.type == "meta" else argument
