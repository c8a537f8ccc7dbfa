"""Random weights and inputs for a proof by test: positive where a root is taken, so that not every output is NaN."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from workbench.symmetry.capture import MOVABLE, Capture

_ROOTS = ("sqrt", "rsqrt", "log", "log2", "log10", "pow")
_SAME_SIGN = ("view", "reshape", "unsqueeze", "squeeze", "expand", "permute", "to", "_to_copy", "clone", "alias", "detach", "add")


def random_weights(captured: Capture, generator: torch.Generator) -> dict[str, Tensor]:
    """Name -> float64 values of all that can move: matrices of gain 1.4, vectors about 1, variances at least 1/2."""
    positive = {captured.roles[node.name][1] for node in roots_taken_of(captured.program.graph)}
    weights: dict[str, Tensor] = {}
    for role, name, value in captured.roles.values():
        if role != MOVABLE or name in weights:
            continue
        shape = tuple(value.shape)
        draw = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name in positive:
            weights[name] = draw.abs() + 0.5
        elif len(shape) > 1:
            weights[name] = draw.mul_(1.4 / math.sqrt(max(1, math.prod(shape[1:]))))
        else:
            weights[name] = 1 + 0.5 * draw
    return weights


def noisy(example_inputs: Any, generator: torch.Generator) -> Any:
    """The inputs in float64 with unit noise added; indices and flags as they are."""

    def with_noise(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
            return leaf.detach().cpu().double().nan_to_num() + noise
        return leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(with_noise, example_inputs)


def roots_taken_of(graph: Graph) -> set[Node]:
    """Placeholders that are variances of a batch norm, or of which a root or a logarithm is taken.

    Only a fixed number may be added on the way (the ε of a batch norm written out).
    """
    found = set()
    for node in graph.nodes:
        if node.op != "call_function" or not node.args:
            continue
        name = _name(node)
        if "batch_norm" in name and len(node.args) > 4:
            found.add(node.args[4])
        elif name in _ROOTS and not (name == "pow" and _whole(node.args[1])):
            found.add(_source(node.args[0]))
    return {node for node in found if isinstance(node, Node) and node.op == "placeholder"}


def _whole(power: object) -> bool:
    return isinstance(power, int | float) and float(power).is_integer()


def _source(node: object) -> object:
    while isinstance(node, Node) and node.op == "call_function" and _name(node) in _SAME_SIGN:
        if any(isinstance(other, Node) for other in node.args[1:]):
            break
        node = node.args[0]
    return node


def _name(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[-1] if schema is not None else getattr(node.target, "__name__", str(node.target))
