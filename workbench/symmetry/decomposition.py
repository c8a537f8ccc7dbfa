"""An exported graph in core ATen, each kind of operation decomposed once.

``ExportedProgram.run_decompositions`` traces the whole program anew, which takes longer than the export: a network of a hundred
equal blocks is decomposed a hundred times. Here an operation is traced on its own, the first time it is met with these shapes,
types and options, and the result is copied in wherever it is met again. Programs that work in place on views, that have
sub-programs or sizes known at run time only, take the long way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram, default_decompositions
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree


def to_core_aten(program: ExportedProgram) -> ExportedProgram:
    """``program`` in the operations that the rules know. The argument is not to be used again."""
    views_to_reshapes(program.graph)
    if not (_has_fixed_shapes(program.graph) and _without_subprograms(program.graph)):
        return program.run_decompositions()
    graph, copies = Graph(), {}
    graph.output(graph.graph_copy(program.graph, copies))
    for node, copy in copies.items():
        copy.name = node.name  # a copy may not be called "input", as Python's own function is
    with _without_mkldnn():
        done = _without_mutation(graph) and _decomposed(graph)
    if not done:
        return program.run_decompositions()
    graph.eliminate_dead_code()
    program.graph_module.graph = graph
    return program


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """An LSTM would become one kernel of that library."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def views_to_reshapes(graph: Graph) -> None:
    """Some decompositions have other strides than their fake tensors, and a view of them fails; views are logical here."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default


def _has_fixed_shapes(graph: Graph) -> bool:
    values = [leaf for node in graph.nodes for leaf in pytree.tree_leaves(node.meta.get("val"))]
    return not any(
        isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
        or (isinstance(value, Tensor) and not all(isinstance(size, int) for size in value.shape))
        for value in values
    )


def _without_subprograms(graph: Graph) -> bool:
    return all(
        node.op in ("placeholder", "output") or isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
        for node in graph.nodes
    )


def _without_mutation(graph: Graph) -> bool:
    """Replace ``relu_`` and ``+=`` by what makes a new tensor, where nothing else shares the memory; whether all could be."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    made_pure: set[Node] = set()

    def shares(node: Node) -> bool:
        return node not in made_pure and _aliases(node)

    for node in list(graph.nodes):
        if not _is_mutable(node):
            continue
        pure, target = _out_of_place(node.target), node.args[0] if node.args else None
        if pure is None or not isinstance(target, Node) or target.op != "call_function" or shares(target):
            return False
        if any(place[user] < place[node] and shares(user) for user in target.users):
            return False
        if len({other.meta["val"].dtype for other in node.all_input_nodes}) > 1:
            return False  # the result would have another type
        node.target = pure
        made_pure.add(node)
        target.replace_all_uses_with(node, delete_user_cb=lambda user, at=place[node]: place[user] > at, propagate_meta=False)
    return True


def _is_mutable(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _out_of_place(op: Any) -> Callable[..., Any] | None:
    name = op._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name[:-1], None) if op.namespace == "aten" and name.endswith("_") else None
    return getattr(packet, op._overloadname, None)


def _aliases(node: Node) -> bool:
    """Whether a result may share memory with an argument; ``reshape`` and the like do not say so."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return node.op != "output"
    source = [other.meta["val"] for other in node.all_input_nodes if isinstance(other.meta.get("val"), Tensor)]
    made = [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]
    shared = {value.untyped_storage()._cdata for value in source} & {value.untyped_storage()._cdata for value in made}
    return bool(shared) or any(result.alias_info is not None for result in schema.returns)


def _decomposed(graph: Graph) -> bool:
    """Decompose every operation in place; whether that could be done for all."""
    table = {**default_decompositions(), torch.ops.aten.native_batch_norm.default: _batch_norm}
    for kept in _KEPT:
        table.pop(kept, None)
    mode = detect_fake_mode([node.meta.get("val") for node in graph.nodes])
    traced: dict[Any, Graph] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _ASSERTIONS:
            graph.erase_node(node)
        elif node.target in table or (_composite(node.target) and node.target not in _KEPT):
            numbers: dict[Node, int] = {}
            key = (node.target, _signature(node.args, numbers), _signature(node.kwargs, numbers))
            if key not in traced:
                try:
                    recurrent = node.target._schema.name in _RECURRENT
                    with enable_python_dispatcher() if recurrent else nullcontext(), mode or nullcontext():
                        traced[key] = _traced(node, table)
                except Exception:
                    return False  # the long way knows how, or gives the reason
            if any(inner.op == "get_attr" or _is_mutable(inner) for inner in traced[key].nodes):
                return False
            _put_in_place(graph, node, traced[key])
    return True


def _composite(target: Any) -> bool:
    """Whether an operation is written in terms of others, as ``reshape`` and ``batch_norm`` are."""
    op = isinstance(target, torch._ops.OpOverload)
    return op and torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")


def _signature(argument: Any, numbers: dict[Node, int]) -> Any:
    """What the decomposition of an operation may depend on: shapes, strides and types of tensors, values of all else."""
    if isinstance(argument, Node):
        value = argument.meta["val"]
        number = numbers.setdefault(argument, len(numbers))
        return number, tuple(value.shape), value.stride(), value.dtype, value.device
    if isinstance(argument, list | tuple):
        return tuple(_signature(part, numbers) for part in argument)
    if isinstance(argument, Mapping):
        return tuple((name, _signature(part, numbers)) for name, part in argument.items())
    return type(argument), argument


def _traced(node: Node, table: Any) -> Graph:
    """The decomposition of one node, as a graph over its input nodes in order."""
    sources = node.all_input_nodes

    def one_operation(*tensors: Tensor) -> Any:
        given = dict(zip(sources, tensors, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), given.__getitem__)
        return node.target(*args, **kwargs)

    # Values are known to a trace by their identity, and nodes copied from one recipe share theirs.
    values = (source.meta["val"] for source in sources)
    fresh = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in values]
    return make_fx(one_operation, decomposition_table=table)(*fresh).graph


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """What a whole trace makes of a batch norm, by the running statistics or by those of the batch."""
    if not training:
        return torch.ops.aten._native_batch_norm_legit_no_training(x, weight, bias, mean, variance, momentum, eps)
    if mean is not None:
        raise NotImplementedError("a batch norm that updates its running statistics")
    return torch.ops.aten._native_batch_norm_legit.no_stats(x, weight, bias, True, momentum, eps)


# Interpolation, which a decomposition into indices hides.
_KEPT = (torch.ops.aten.upsample_nearest2d.vec, torch.ops.aten.upsample_bilinear2d.vec)

# Decomposed in Python, where the others' Python decompositions are for other uses.
_RECURRENT = ("aten::rnn_tanh", "aten::rnn_relu", "aten::lstm", "aten::gru")

# Of values or types at run time; they say nothing about which units are alike.
_ASSERTIONS = (
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._assert_async.default,
)


def _put_in_place(graph: Graph, node: Node, recipe: Graph) -> None:
    sources = iter(node.all_input_nodes)
    made: dict[Node, Node] = {}
    result: Any = None
    with graph.inserting_before(node):
        for inner in recipe.nodes:
            if inner.op == "placeholder":
                made[inner] = next(sources)
            elif inner.op == "output":
                result = map_arg(inner.args[0], made.__getitem__)
            elif inner.target not in _ASSERTIONS and "val" in inner.meta:  # without: a check, as of an inverse
                made[inner] = graph.node_copy(inner, made.__getitem__)
                made[inner].meta = {**node.meta, "val": inner.meta["val"]}
    if isinstance(result, list | tuple):
        for user in list(node.users):
            user.replace_all_uses_with(result[user.args[1]], propagate_meta=False)
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(result, propagate_meta=False)
    graph.erase_node(node)
