"""Branches that may change places: equal sub-graphs whose results are summed or laid side by side.

Experts held as modules, heads held as modules, parallel towers: no axis of any tensor says that they are alike. The graph does.
Terms of one sum (or operands of one concatenation) are compared in lockstep from the result backwards; where they differ only in
which parameters they use, and in which position of a common tensor they read (the router's output), they form a class. The model
is then written anew with the parameters of a class *stacked* along a new axis and the branch mapped over it. That is the same
function of the same numbers, so the ordinary walk over the new graph finds the exchange as one more factor, the router's rows in it
and the units inside each branch depending on it. (Automorphisms of the computation graph: Lim et al., arXiv 2312.04501.)
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from workbench.symmetry.capture import MOVABLE, Capture

_ATEN = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Read:
    """What branch e reads of a common tensor: entries e·width … of ``source`` along ``dim``, from ``start`` on."""

    source: Node
    dim: int
    start: int
    width: int
    squeeze: bool

    def stacked(self, source: Tensor, count: int) -> Tensor:
        """(count, …): the parts of all branches."""
        part = source.narrow(self.dim, self.start, count * self.width)
        part = part.unflatten(self.dim, (count, self.width)).movedim(self.dim, 0)
        return part.squeeze(self.dim + 1) if self.squeeze else part


@dataclass(eq=False)
class Branches:
    """One class. root: the sum or concatenation; terms: its operands, one per branch; others: what else is summed.

    body: the nodes of the first branch, in order, with what takes the place of each mapped argument; stacks: first branch's
    parameter -> the parameters of all; reads: first branch's node -> what it reads; numbers: comparisons
    with 0, 1, 2, … in the branches; shared: nodes that all branches read; same: node -> the first that computes the same.
    """

    root: Node
    terms: tuple[Node, ...]
    others: tuple[Node, ...]
    stacks: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    reads: dict[Node, Read] = field(default_factory=dict)
    numbers: set[Node] = field(default_factory=set)
    body: list[Node] = field(default_factory=list)
    shared: dict[Node, None] = field(default_factory=dict)
    same: Mapping[Node, Node] = field(default_factory=dict)


def find_branches(captured: Capture) -> list[Branches]:
    """Classes of two or more branches, in graph order; no parameter is in two classes."""
    graph = captured.program.graph
    movable = {n for n in graph.nodes if n.op == "placeholder" and captured.roles[n.name][0] == MOVABLE}
    same = _value_numbers(graph.nodes)
    found: list[Branches] = []
    taken: dict[Node, tuple[Node, ...]] = {}
    inner: set[Node] = set()  # additions that are part of a longer sum
    for node in reversed(graph.nodes):
        if node in inner or node.op != "call_function":
            continue
        terms = _terms(node, inner)
        for group in _alike(terms, movable, same):
            others = [term for term in terms if term not in group]
            # Branches that read a common tensor are numbered as they read it: forwards, or backwards.
            tried = (_Lockstep(movable, same).compare(node, order, others) for order in (group, group[::-1]))
            branches = next((found for found in tried if found is not None), None)
            if branches is None or (node.target is _ATEN.cat.default and branches.others):
                continue
            if all(taken.get(p, row) == row for row in branches.stacks.values() for p in row):
                taken |= {p: row for row in branches.stacks.values() for p in row}
                found.append(branches)
                break  # one class a sum: the node is replaced as a whole
    return found[::-1]


def _terms(node: Node, inner: set[Node]) -> list[Node]:
    """Operands of a sum, through additions that nobody else reads, or of a concatenation; else nothing."""
    if node.target is _ATEN.cat.default:
        return list(node.args[0])
    if not _plain_sum(node):
        return []
    terms: list[Node] = []
    waiting = [node]
    while waiting:
        for operand in reversed(waiting.pop().args[:2]):
            operand = _without_zero(operand)
            if isinstance(operand, Node) and _plain_sum(operand) and len(operand.users) == 1:
                inner.add(operand)
                waiting.append(operand)
            else:
                terms.append(operand)
    return [t for t in terms if isinstance(t, Node)]


def _without_zero(node: Node) -> Node:
    """Python's ``sum`` begins with 0 + the first term."""
    while node.target is _ATEN.add.Tensor and node.args[1] == 0 and not isinstance(node.args[1], Node):
        node = node.args[0]
    return node


def _plain_sum(node: Node) -> bool:
    return node.target is _ATEN.add.Tensor and not node.kwargs and all(isinstance(a, Node) for a in node.args)


def _alike(terms: Sequence[Node], movable: set[Node], same: Mapping[Node, Node]) -> list[list[Node]]:
    """Terms grouped by what they compute, wherever they read; groups of two or more, in the order of the graph."""
    groups: list[list[Node]] = []
    order = {node: place for place, node in enumerate(same)}
    for term in sorted(set(terms), key=order.__getitem__):
        if term.op != "call_function" or terms.count(term) != 1:
            continue
        for group in groups:
            if _Lockstep(movable, same, anywhere=True).compare(term, [group[0], term], []) is not None:
                group.append(term)
                break
        else:
            groups.append([term])
    return [group for group in groups if len(group) > 1]


def _shape(node: Node) -> Any:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _value_numbers(nodes: Sequence[Node]) -> dict[Node, Node]:
    """Node -> the first node that computes the same: branches written one after another read common tensors through copies."""
    first: dict[Any, Node] = {}
    same: dict[Node, Node] = {}
    for node in nodes:
        same[node] = node
        if node.op == "call_function":
            leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
            key = (node.target, str(spec), tuple(same[leaf] if isinstance(leaf, Node) else repr(leaf) for leaf in leaves))
            same[node] = first.setdefault(key, node)
    return same


class _Lockstep:
    """Compares branches node by node. anywhere: they may read any part of a common tensor, not just neighbours in order."""

    def __init__(self, movable: set[Node], same: Mapping[Node, Node], *, anywhere: bool = False) -> None:
        self._movable, self._same, self._anywhere = movable, same, anywhere

    def compare(self, root: Node, group: list[Node], others: list[Node]) -> Branches | None:
        self.out = Branches(root, tuple(group), tuple(others), same=self._same)
        self._seen: dict[Node, tuple[Node, ...]] = {}
        if not self._nodes(tuple(group)) or not (self.out.stacks or self.out.reads):
            return None
        return self.out

    def _nodes(self, row: tuple[Node, ...]) -> bool:
        """Whether the nodes of a row, one per branch, compute the same of their own parameters. Iterative: graphs are deep."""
        stack = [(row, False)]
        while stack:
            row, done = stack.pop()
            row = tuple(self._same[node] for node in row)
            first = row[0]
            if done:
                self.out.body.append(first)
                continue
            if all(node is first for node in row):
                self.out.shared.setdefault(first)
                continue
            if first in self._seen:
                if self._seen[first] != row:
                    return False
                continue
            self._seen[first] = row
            if all(node in self._movable for node in row):
                if len(set(row)) < len(row) or len({_shape(node) for node in row}) > 1:
                    return False
                self.out.stacks[first] = row
                continue
            read = self._common_read(row)
            if read is not None:
                self.out.reads[first] = read
                continue
            children = self._children(row)
            if children is None:
                return False
            stack.append((row, True))
            stack += [(child, False) for child in children]
        return not set(self.out.shared) & set(self._seen)

    def _common_read(self, row: tuple[Node, ...]) -> Read | None:
        """The part of one tensor that each branch reads, where those are neighbours of equal width in branch order."""
        parts = [_part(node) for node in row]
        first = parts[0]
        if first is None or any(part is None for part in parts):
            return None
        shapes = {(self._same[part.source], part.dim, part.width, part.squeeze) for part in parts}
        in_order = all(part.start == first.start + e * first.width for e, part in enumerate(parts))
        return first if len(shapes) == 1 and (in_order or self._anywhere) else None

    def _children(self, row: tuple[Node, ...]) -> list[tuple[Node, ...]] | None:
        """Rows of arguments, or None where the operations differ."""
        first = row[0]
        if any(n.op != "call_function" or n.target is not first.target or _shape(n) != _shape(first) for n in row):
            return None
        flat = [pytree.tree_flatten((n.args, n.kwargs)) for n in row]
        if any(spec != flat[0][1] for _, spec in flat):
            return None
        rows = list(zip(*(leaves for leaves, _ in flat), strict=True))
        if first.target in (_ATEN.eq.Scalar, _ATEN.ne.Scalar) and (self._anywhere or rows[1] == tuple(range(len(row)))):
            self.out.numbers.add(first)
            rows = rows[:1]
        children = []
        for values in rows:
            if all(isinstance(value, Node) for value in values):
                children.append(values)
            elif any(isinstance(value, Node) for value in values) or any(value != values[0] for value in values):
                return None
        return children


def _part(node: Node) -> Read | None:
    if node.target is _ATEN.select.int:
        source, dim, start = node.args
        rank, width, squeeze = len(_shape(source)), 1, True
    elif node.target is _ATEN.slice.Tensor and len(node.args) == 4:
        source, dim, start, stop = node.args
        rank, squeeze = len(_shape(source)), False
        width = _shape(node)[dim % rank]
        if stop - start != width:
            return None
    elif node.target is operator.getitem and node.args[0].target is _ATEN.split_with_sizes.default:
        split, place = node.args
        source, sizes = split.args[:2]
        dim = split.args[2] if len(split.args) > 2 else 0
        rank, start, width, squeeze = len(_shape(source)), sum(sizes[:place]), sizes[place], False
    else:
        return None
    dim %= rank
    return Read(source, dim, start % _shape(source)[dim], width, squeeze)
