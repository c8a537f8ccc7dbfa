"""Which parameters must be positive, so that random weights for a test do not make every output NaN."""

from __future__ import annotations

from torch.fx import Graph, Node

_ROOTS = ("sqrt", "rsqrt", "log", "log2", "log10", "pow")
_SAME_SIGN = ("view", "reshape", "unsqueeze", "squeeze", "expand", "permute", "to", "_to_copy", "clone", "alias", "detach", "add")


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
