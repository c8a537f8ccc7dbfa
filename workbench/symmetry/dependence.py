"""Dependent factors: a factor f that always appears beside a factor b may be permuted independently for each value of b.

Heads, grouped convolutions, GroupNorm and experts need no case of their own: f = "inside", b = "which one" gives the wreath
product S_f ≀ S_b. b may be pinned. The criterion, read off the records alone:

1. every parameter, operand, result, and the product tensor of every loop before its reduction, links each leaf of f to exactly
   one leaf of b: one in the same axis (not inside a branch of a sum that f is outside of), or else one in another axis that is
   the only one in the tensor and not below a sum, or else the one it was looked up with (a virtual coordinate);
2. within one record, all leaves of f in one loop link to b through the same loop;
3. an axis that indices point into holds b beside f wherever it holds f.

Why that is enough: let f's loop variable be permuted by π^(β), β the value of the linked loop. By 2 all operands that run over f
run over the same linked loop, so for fixed β the operation sees one relabelling of the f loop. If f is reduced, the reduction is
symmetric for each β; if b is reduced but f is kept, the result has f without a link and 1 has failed already.

Where f depends on b and b on f, every operation treats (b, f) as one loop; where they stand side by side in every parameter, the
two become one factor of size |b|·|f| (a view and its inverse).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from workbench.symmetry.pointers import ALONG, Pointer
from workbench.symmetry.records import Record, TensorType
from workbench.symmetry.trees import Atom, Cat, Prod, Reason, Tree, concatenation, normalise, product, unify

_AGAIN = Reason("the two run together")  # what the walk unified already: nothing new is bound by it


@dataclass(frozen=True, eq=False)
class _Leaf:
    atom: Atom
    axis: int
    branch: Mapping[int, int]  # id of each sum above the leaf -> which part it is in


def _leaves(tree: Tree, axis: int, branch: Mapping[int, int]) -> Iterator[_Leaf]:
    tree = normalise(tree)
    if isinstance(tree, Atom):
        yield _Leaf(tree, axis, branch)
    elif isinstance(tree, Prod):
        for child in tree.children:
            yield from _leaves(child, axis, branch)
    elif isinstance(tree, Cat):
        for number, part in enumerate(tree.parts):
            yield from _leaves(part, axis, {**branch, id(tree): number})


class _Tensor:
    """Leaves of one tensor with the loop key of each of its axes."""

    def __init__(
        self,
        axes: Iterable[Tree],
        keys: tuple[Hashable | None, ...] | None = None,
        looked_up: Iterable[tuple[Tree, Hashable, frozenset[int]]] = (),
    ) -> None:
        trees = list(axes)
        self.keys = keys if keys is not None else tuple(range(len(trees)))
        self.looked_up = dict.fromkeys(looked_up)
        self.by_atom: dict[Atom, list[_Leaf]] = defaultdict(list)
        for axis, tree in enumerate(trees):
            for leaf in _leaves(tree, axis, {}):
                self.by_atom[leaf.atom].append(leaf)

    def link(self, f: _Leaf, b: Atom) -> tuple[Hashable] | None:
        """The loop (a 1-tuple) of the one leaf of ``b`` that says which copy ``f`` is in; None where there is none or a choice."""
        found = self.by_atom.get(b, ())
        near = [leaf for leaf in found if leaf.axis == f.axis and leaf.branch.items() <= f.branch.items()]
        if near:
            return (self.keys[f.axis],) if len(near) == 1 else None
        far = [(self.keys[leaf.axis],) for leaf in found if not leaf.branch and leaf.axis != f.axis]
        if len(far) != len(found):
            return None
        for tree, loop, of in self.looked_up:
            if f.axis not in of:
                continue
            leaves = [leaf for leaf in _leaves(tree, 0, {}) if leaf.atom is b]
            if leaves and (loop,) not in far:
                far.append((loop,))
            if len(leaves) > 1 or any(leaf.branch for leaf in leaves):
                return None
        return far[0] if len(far) == 1 else None


def _tensors(record: Record) -> list[_Tensor]:
    """Operands and results of a record, and for a loop the product over all its keys before anything is reduced."""
    both = (*record.operands, *record.results)
    name = Pointer.descriptor if record.kind == "loop" else lambda pointer, keys: ALONG
    virtual = [[(pointer.tree, name(pointer, keys), pointer.of) for pointer in tensor.virtual] for tensor, keys in both]
    sides = [_Tensor(tensor.axes, keys, held) for (tensor, keys), held in zip(both, virtual, strict=True)]
    if record.kind == "loop":
        merged: dict[Hashable, Tree] = {}
        for tensor, keys in record.operands:
            for axis, key in zip(tensor.axes, keys, strict=True):
                if key is not None:
                    merged[key] = unify(merged[key], axis, _AGAIN) if key in merged else axis
        held = [
            (tree, loop, frozenset(place for place, key in enumerate(merged) if key in {keys[axis] for axis in of}))
            for (_, keys), pointers in zip(both, virtual, strict=True)
            for tree, loop, of in pointers
            if loop not in merged
        ]
        sides.append(_Tensor(merged.values(), tuple(merged), held))
    return sides


class Dependence:
    """Which free atoms may be permuted per value of which others; ``blocked`` keeps the first record that forbade it."""

    def __init__(self, parameters: Mapping[str, TensorType], records: list[Record], pointed: Iterable[Tree] = ()) -> None:
        self._parameters = [_Tensor(kind.axes) for kind in parameters.values()]
        self._records = [(record, _tensors(record)) for record in records if record.kind != "opaque"]
        self._records_of: dict[Atom, list[int]] = defaultdict(list)
        for number, (_, tensors) in enumerate(self._records):
            for atom in {atom for tensor in tensors for atom in tensor.by_atom}:
                self._records_of[atom].append(number)
        self._pointed = [_Tensor([tree]) for tree in pointed]
        self.blocked: dict[tuple[Atom, Atom], str] = {}
        self.free = [a for a in dict.fromkeys(a for t in self._parameters for a in t.by_atom) if not a.pins]
        self.over = {f: [b for b in self._candidates(f) if self._may_depend(f, b)] for f in self.free}

    def of(self, f: Atom) -> list[Atom]:
        """What ``f``, which may be pinned, may have a copy for each value of."""
        return self.over[f] if f in self.over else [b for b in self._candidates(f) if self._may_depend(f, b)]

    def _candidates(self, f: Atom) -> list[Atom]:
        """Atoms linked to f in every parameter that carries f."""
        candidates: list[Atom] | None = None
        for tensor in self._parameters:
            for leaf in tensor.by_atom.get(f, ()):
                linked = [b for b in tensor.by_atom if b is not f and tensor.link(leaf, b)]
                candidates = linked if candidates is None else [b for b in candidates if b in linked]
                if not candidates:
                    return []
        return candidates or []

    def _may_depend(self, f: Atom, b: Atom) -> bool:
        for number in self._records_of[f]:
            record, tensors = self._records[number]
            through: dict[Hashable, Hashable] = {}
            for tensor in tensors:
                for leaf in tensor.by_atom.get(f, ()):
                    link = tensor.link(leaf, b)
                    key = tensor.keys[leaf.axis]
                    if link is None or key is None or through.setdefault(key, link) != link:
                        self.blocked[f, b] = f"{record.op} in {record.module}" if record.module else record.op
                        return False
        if any(tensor.link(leaf, b) is None for tensor in self._pointed for leaf in tensor.by_atom.get(f, ())):
            self.blocked[f, b] = "indices into the axis"
            return False
        return True


def joint_pairs(dependence: Dependence, trees: Iterable[Tree]) -> dict[tuple[Atom, Atom], Atom]:
    """Pairs (b, f) that depend on each other and on nothing else, and stand as neighbours b × f in all ``trees``, with the one
    atom of size |b|·|f| that takes their place."""
    trees = list(trees)
    out: dict[tuple[Atom, Atom], Atom] = {}
    used: set[Atom] = set()
    for f in dependence.free:
        for b in dependence.over[f]:
            mutual = not b.pins and dependence.over.get(b) == [f] and dependence.over[f] == [b]
            # A third factor must see the pair as one too: it depends on both or on neither.
            others = [set(outer) & {b, f} for g, outer in dependence.over.items() if g not in (b, f)]
            mutual = mutual and all(len(shared) != 1 for shared in others)
            if mutual and not used & {b, f} and all(_neighbours(tree, b, f) for tree in trees):
                joint = Atom(b.size * f.size)
                joint.ties.update(b.ties | f.ties)
                out[b, f] = joint
                used |= {b, f}
    return out


def _neighbours(tree: Tree, b: Atom, f: Atom) -> bool:
    """Whether b and f occur in ``tree`` only side by side, b left of f."""
    tree = normalise(tree)
    if isinstance(tree, Cat):
        return all(_neighbours(part, b, f) for part in tree.parts)
    children = list(tree.children) if isinstance(tree, Prod) else [tree]
    for i, child in enumerate(children):
        if child is b and not (i + 1 < len(children) and children[i + 1] is f):
            return False
        if child is f and not (i > 0 and children[i - 1] is b):
            return False
        if isinstance(child, Cat) and not _neighbours(child, b, f):
            return False
    return True


def join(tree: Tree, pairs: Mapping[tuple[Atom, Atom], Atom]) -> Tree:
    """``tree`` with every neighbouring pair b × f replaced by its joint atom."""
    tree = normalise(tree)
    if isinstance(tree, Cat):
        return concatenation(join(part, pairs) for part in tree.parts)
    if not isinstance(tree, Prod):
        return tree
    out: list[Tree] = []
    for child in tree.children:
        child = join(child, pairs)
        joint = pairs.get((out[-1], child)) if out and isinstance(out[-1], Atom) and isinstance(child, Atom) else None
        if joint is not None:
            out[-1] = joint
        else:
            out.append(child)
    return product(out)


def acyclic(over: Mapping[Atom, list[Atom]]) -> dict[Atom, tuple[Atom, ...]]:
    """Drop directions until no factor depends on itself, and until each dependence contains those of what it is over.

    Dropping a direction loses group elements, never soundness.
    """
    kept: dict[Atom, list[Atom]] = {f: [] for f in over}

    def reaches(start: Atom, goal: Atom) -> bool:
        return start is goal or any(reaches(b, goal) for b in kept.get(start, ()))

    for f, outer in over.items():
        for b in outer:
            if not reaches(b, f):
                kept[f].append(b)
    changed = True
    while changed:
        changed = False
        for outer in kept.values():
            for b in list(outer):
                if not set(kept.get(b, ())) <= set(outer):
                    outer.remove(b)
                    changed = True
    return {f: tuple(outer) for f, outer in kept.items() if outer}
