"""From a module to its ATen graph: ``torch.export`` in eval mode, then core decompositions.

The caller's model keeps its weights, mode and flags: a structural copy is exported. The graph's inputs are the
parameters, the buffers, the constants and the user's inputs, each with a role.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from workbench.errors import WorkbenchError
from workbench.states import storage_key
from workbench.symmetry.decomposition import to_core_aten
from workbench.symmetry.failures import users_line, without_graph_dump
from workbench.symmetry.trial import structural_copy, trial
from workbench.twins import require_model

MOVABLE, CONSTANT, INPUT = "movable", "constant", "input"


@dataclass(frozen=True)
class Capture:
    """A captured model.

    program: the exported program in core ATen; roles: placeholder name -> (role, state-dict name or input name, tensor or
    None); outputs: (name, node, matters) per graph output; aliases: tied name -> canonical name; state: all named tensors;
    module: the caller's; wanted: the names of the outputs that matter, None for all.
    """

    program: ExportedProgram
    roles: Mapping[str, tuple[str, str, Tensor | None]]
    outputs: Sequence[tuple[str, Node, bool]]
    aliases: Mapping[str, str]
    state: Mapping[str, Tensor]
    module: nn.Module
    wanted: Sequence[str] | None = None


# torch.export writes torch.fx's process-wide record of the current node: two exports must not run at once.
EXPORT_LOCK = threading.RLock()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[nn.Module]:
    """``model`` itself in eval mode, every module's own flag put back afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, training in flags:
            module.training = training


def split_inputs(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tensor, a tuple/list or a dict."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def capture(model: nn.Module, example_inputs: Any, *, outputs: Sequence[str] | None = None, decompose: bool = True) -> Capture:
    """Export ``model`` on ``example_inputs`` (a tuple, or a dict of keyword arguments).

    outputs: names of the outputs that matter ("0", "1" for a tuple, keys for a dict, "logits" for a dataclass field); the
    others are ignored. decompose: to core ATen, which the rules need; merely running a graph does not. Raises WorkbenchError
    where the model fails on the inputs, cannot be exported, or a name is unknown.
    """
    require_model(model)
    outputs = (outputs,) if isinstance(outputs, str) else outputs
    odd = [name for name, parameter in model.named_parameters() if parameter.is_complex()]
    if odd:
        raise WorkbenchError(
            f"The model has complex parameters, such as {odd[0]!r}",
            expected="real parameters",
            next_step="keep the real and the imaginary part as two parameters",
        )
    empty = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if nn.parameter.is_lazy(tensor)]
    if empty:
        raise WorkbenchError(
            f"The model has parameters without a shape, such as {empty[0]!r}",
            expected="parameters with values",
            cause="lazy modules, such as nn.LazyLinear, take their shape from the first input",
            next_step="run the model once on the example inputs",
        )
    held = (*model.parameters(), *model.buffers(), *pytree.tree_leaves(split_inputs(example_inputs)))
    if any(isinstance(tensor, Tensor) and tensor.layout is not torch.strided for tensor in held):
        raise WorkbenchError(
            "The model or its inputs hold a sparse tensor",
            expected="dense tensors",
            next_step="pass tensor.to_dense() on a small example: the symmetry does not depend on how an input is stored",
        )
    args, kwargs = split_inputs(example_inputs)
    with EXPORT_LOCK, torch.no_grad(), warnings.catch_warnings(), _no_fastpath():
        warnings.simplefilter("ignore")
        twin = structural_copy(model)
        try:
            trial(twin, args, kwargs)
        except Exception as error:
            raise WorkbenchError(
                f"The model fails on the example inputs: {type(error).__name__}: {_first_line(error)}",
                expected=f"inputs the model accepts; got {_shapes(example_inputs)}",
                **_advice(error, twin),
            ) from error
        program = _export(twin, args, kwargs, decompose)
        if _reads_outside(program, model):
            # Closures and hooks of the original go on reading the original's weights: trace the model itself.
            with eval_mode(model):
                program = _export(model, args, kwargs, decompose)
    return _describe(model, program, outputs)


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], decompose: bool) -> ExportedProgram:
    try:
        with without_graph_dump():
            program = torch.export.export(model, args, kwargs, strict=False)
        if decompose:
            program = to_core_aten(program)
    except Exception as error:
        where = users_line(error)
        raise WorkbenchError(
            f"torch.export could not capture the model: {type(error).__name__}: {_first_line(error)}",
            expected="a forward pass whose control flow does not depend on the values of tensors",
            cause=where,
            next_step="move branches and sizes that depend on data out of forward, or write them with torch.where and masks",
        ) from error
    _require_fixed_shapes(program)
    return program


def _require_fixed_shapes(program: ExportedProgram) -> None:
    """Raise where a shape in the graph is only known once the inputs are, as after ``nonzero`` or a list of counts."""
    for node in program.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.SymInt) or (isinstance(value, Tensor) and not all(isinstance(n, int) for n in value.shape)):
                stack = list((node.meta.get("nn_module_stack") or {}).values())
                raise WorkbenchError(
                    f"torch.export captured the model with a size that depends on the values of tensors, from {node.target}"
                    + (f" in {stack[-1][0]}" if stack and stack[-1][0] else ""),
                    expected="shapes that follow from the shapes of the inputs",
                    cause="entries are selected by a mask or by a count, as in routing that lists each expert's tokens",
                    next_step="use another implementation, such as experts_implementation='batched_mm' in transformers",
                )


def _reads_outside(program: ExportedProgram, model: nn.Module) -> bool:
    """Whether a parameter of the model entered the graph as a plain constant, which a closure over the model makes it do."""
    weights = {tensor.untyped_storage()._cdata for tensor in model.parameters()}
    constants = [value for value in program.constants.values() if isinstance(value, Tensor)]
    return any(value.untyped_storage()._cdata in weights for value in constants)


@contextmanager
def _no_fastpath() -> Iterator[None]:
    """Without the fused attention kernel, which has no graph."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _advice(error: Exception, model: nn.Module) -> dict[str, str]:
    if "dtype" in str(error) or "scalar type" in str(error):
        types = sorted({str(parameter.dtype) for parameter in model.parameters()})
        return {
            "cause": f"inputs of another type than the model's parameters, which are {', '.join(types) or 'none'}",
            "next_step": "turn the inputs into that type, such as x.float()",
        }
    return {
        "cause": "a wrong input shape, or a missing argument",
        "next_step": "pass a tuple of positional inputs, or a dict of keyword inputs",
    }


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]


def _shapes(inputs: Any) -> str:
    leaves = pytree.tree_leaves(inputs)
    return ", ".join(str(tuple(leaf.shape)) if isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in leaves)


def tied_names(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of the state dict by name, and tied name -> first name of the same memory."""
    state = dict(model.state_dict(keep_vars=True))
    first: dict[tuple, str] = {}
    aliases = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            continue
        key = storage_key(tensor)
        if tensor.numel() and key in first:
            aliases[name] = first[key]
        else:
            first[key] = name
    return {n: t for n, t in state.items() if isinstance(t, Tensor)}, aliases


def _describe(model: nn.Module, program: ExportedProgram, wanted: Sequence[str] | None) -> Capture:
    state, aliases = tied_names(model)
    roles: dict[str, tuple[str, str, Tensor | None]] = {}
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind is InputKind.PARAMETER:
            roles[name] = (MOVABLE, aliases.get(spec.target, spec.target), program.state_dict.get(spec.target))
        elif spec.kind is InputKind.BUFFER:
            value = program.state_dict.get(spec.target)
            if value is None:
                value = program.constants.get(spec.target)
            movable = spec.persistent and value is not None and value.is_floating_point()
            roles[name] = (MOVABLE if movable else CONSTANT, aliases.get(spec.target, spec.target), value)
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            roles[name] = (CONSTANT, spec.target, program.constants.get(spec.target))
        else:
            roles[name] = (INPUT, name, None)
    output_node = next(node for node in program.graph.nodes if node.op == "output")
    nodes = list(output_node.args[0])
    specs = program.graph_signature.output_specs
    user = [i for i, spec in enumerate(specs) if spec.kind.name == "USER_OUTPUT"]
    names = _output_names(program, len(user))
    if wanted is not None and not wanted:
        raise WorkbenchError(
            "No output was named that matters, so that anything may be done to the model",
            expected=f"some of {', '.join(names) or 'none: the model returns no tensor'}",
            next_step="leave outputs away where all matter",
        )
    if wanted is not None:
        missing = [name for name in wanted if name not in names]
        if missing:
            raise WorkbenchError(f"The model has no output called {missing[0]!r}", expected=f"some of {', '.join(names)}")
    outputs = []
    for i, node in enumerate(nodes):
        if not isinstance(node, Node):
            continue
        name = names[user.index(i)] if i in user else f"the updated buffer {specs[i].target}"
        outputs.append((name, node, wanted is None or name in wanted))
    return Capture(program, roles, outputs, aliases, state, model, wanted)


def _output_names(program: ExportedProgram, count: int) -> list[str]:
    """ "0", "1" for a tuple, keys for a dict, "logits.0" for nested ones; "output" for a bare tensor."""
    tree = pytree.tree_unflatten(list(range(count)), program.call_spec.out_spec)
    paths = pytree.tree_flatten_with_path(tree)[0]
    names = [""] * count
    for path, index in paths:
        words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        if isinstance(index, int) and index < count:
            names[index] = ".".join(words) or "output"
    return [name or str(i) for i, name in enumerate(names)]
