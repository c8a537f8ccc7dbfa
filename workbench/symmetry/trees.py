"""Axis types: trees over shared atoms, in which refinement is substitution.

During discovery every axis of every tensor has a tree: an ``Atom`` (one loop whose order is not yet decided), a ``Prod``
(row-major, the leftmost factor slowest), a ``Cat`` (concatenation in order) or ``Uni`` (the tensor is constant along this
stretch). Atoms are shared between tensors; when an operation shows that an atom has inner structure, or is the same loop as
another, the atom is bound once and the discovery is seen everywhere it occurs. Meaning, kept by every rule: for every
assignment of a permutation to each free atom, if all parameters are permuted according to their trees then so is every
intermediate tensor, and pinned axes do not move.

Invariants: sizes are exact; a size-1 atom is never made (it is ``ONE``); an atom is bound once and sizes shrink, so no
occurs-check is needed; a pinned atom passes its pin to all it is bound to; ``Uni`` is a promise about values, never a variable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_ids = itertools.count()


@dataclass(frozen=True)
class Reason:
    """Why something was tied or pinned: the operation, the module path it ran in, and a sentence."""

    text: str
    op: str = ""
    module: str = ""

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        return f"{self.op}{where}: {self.text}" if self.op else self.text


class Atom:
    """A loop of ``size`` ≥ 2.

    ref: what it was bound to; pins: reasons why its order is fixed; ties: why it was joined to others.
    """

    __slots__ = ("id", "pins", "ref", "size", "ties")

    def __init__(self, size: int, pins: Iterable[Reason] = ()) -> None:
        self.size, self.ref, self.id = size, None, next(_ids)
        self.pins: dict[Reason, None] = dict.fromkeys(pins)
        self.ties: dict[Reason, None] = {}

    def __repr__(self) -> str:
        return f"{'!' if self.pins else ''}a{self.id}:{self.size}"


@dataclass(frozen=True, eq=False)
class Prod:
    children: tuple[Tree, ...]
    size: int

    def __repr__(self) -> str:
        return "(" + " × ".join(map(repr, self.children)) + ")"


@dataclass(frozen=True, eq=False)
class Cat:
    parts: tuple[Tree, ...]
    size: int

    def __repr__(self) -> str:
        return "[" + " ⊕ ".join(map(repr, self.parts)) + "]"


@dataclass(frozen=True)
class Uni:
    size: int


Tree = Atom | Prod | Cat | Uni
ONE = Prod((), 1)


def fresh(size: int, pins: Iterable[Reason] = ()) -> Tree:
    """A new atom, or ``ONE`` for a single entry."""
    return ONE if size == 1 else Atom(size, pins)


def uniform(size: int) -> Tree:
    return ONE if size == 1 else Uni(size)


def find(atom: Atom) -> Tree:
    """What an atom is bound to, with path compression over chains of atoms."""
    chain = []
    tree: Tree = atom
    while isinstance(tree, Atom) and tree.ref is not None:
        chain.append(tree)
        tree = tree.ref
    for link in chain[:-1]:
        link.ref = tree
    return tree


def normalise(tree: Tree) -> Tree:
    """Follow bindings; flatten; drop ``ONE`` in products; let a ``Cat`` absorb the factors on its right."""
    if isinstance(tree, Atom):
        found = find(tree)
        return found if isinstance(found, Atom | Uni) else normalise(found)
    if isinstance(tree, Prod):
        return product(tree.children)
    if isinstance(tree, Cat):
        return concatenation(tree.parts)
    return tree


def product(children: Iterable[Tree]) -> Tree:
    """The normal form of a product: flat, no ``ONE``, neighbouring ``Uni`` merged, a ``Cat`` only in last place.

    (a ⊕ b) × c = (a × c) ⊕ (b × c) is exact in row-major order; its mirror image is not, and stays nested.
    """
    flat: list[Tree] = []
    for child in children:
        child = normalise(child)
        flat.extend(child.children if isinstance(child, Prod) else (child,))
    for i, child in enumerate(flat[:-1]):
        if isinstance(child, Cat):
            rest = flat[i + 1 :]
            flat = [*flat[:i], concatenation(product((part, *rest)) for part in child.parts)]
            break
    merged: list[Tree] = []
    for child in flat:
        if merged and isinstance(child, Uni) and isinstance(merged[-1], Uni):
            merged[-1] = Uni(merged[-1].size * child.size)
        else:
            merged.append(child)
    if len(merged) == 1:
        return merged[0]
    return Prod(tuple(merged), math.prod(child.size for child in merged)) if merged else ONE


def concatenation(parts: Iterable[Tree]) -> Tree:
    """The normal form of a concatenation: flat. ``ONE`` stays (a fixed position), as do neighbouring ``Uni`` (they may differ)."""
    flat: list[Tree] = []
    for part in parts:
        part = normalise(part)
        flat.extend(part.parts if isinstance(part, Cat) else (part,))
    return flat[0] if len(flat) == 1 else Cat(tuple(flat), sum(part.size for part in flat))


def stretches(tree: Tree) -> Iterator[Atom | Uni]:
    """The atoms and constant stretches of a tree, in order, with repetitions."""
    tree = normalise(tree)
    if isinstance(tree, Atom | Uni):
        yield tree
    else:
        for child in tree.children if isinstance(tree, Prod) else tree.parts:
            yield from stretches(child)


def atoms(tree: Tree) -> Iterator[Atom]:
    """Atoms of a tree, in order, with repetitions."""
    return (part for part in stretches(tree) if isinstance(part, Atom))


def pin(tree: Tree, reason: Reason) -> None:
    """Fix the order of every atom in ``tree``. ``Uni`` has none to fix: a rule that pins must not return a tree with ``Uni``."""
    for atom in atoms(tree):
        atom.pins.setdefault(reason)


def pinned(size: int, reason: Reason) -> Tree:
    """A fresh axis whose order is fixed."""
    return fresh(size, (reason,))


def _without_uniform(tree: Tree) -> Tree:
    """A copy in which each ``Uni`` became a fresh atom: binding must not spread a promise about one tensor's values to others."""
    tree = normalise(tree)
    if isinstance(tree, Uni):
        return fresh(tree.size)
    if isinstance(tree, Prod):
        return product(_without_uniform(child) for child in tree.children)
    if isinstance(tree, Cat):
        return concatenation(_without_uniform(part) for part in tree.parts)
    return tree


def _bind(atom: Atom, tree: Tree, why: Reason | None) -> Tree:
    tree = _without_uniform(tree)
    for target in atoms(tree):
        for reason in atom.pins:
            target.pins.setdefault(reason)
        for reason in atom.ties:
            target.ties.setdefault(reason)
        if why is not None:
            target.ties.setdefault(why)
    if isinstance(tree, Atom) and tree.pins:
        for reason in tree.pins:
            atom.pins.setdefault(reason)
    atom.ref = tree
    return tree


def unify(a: Tree, b: Tree, why: Reason) -> Tree:
    """Make two axes of equal size one loop; returns the merged tree. Where their structures disagree, both are pinned."""
    a, b = normalise(a), normalise(b)
    if a.size != b.size:
        raise AssertionError(f"axes of different size met: {a} and {b}")
    if a is b or a.size == 1:
        return a
    if isinstance(a, Uni):
        return b
    if isinstance(b, Uni):
        return a
    if isinstance(a, Atom):
        return _bind(a, b, why)
    if isinstance(b, Atom):
        return _bind(b, a, why)
    if isinstance(a, Prod) and isinstance(b, Prod):
        merged = _unify_products(a, b, why)
        if merged is None:
            disagree = Reason("two factorisations of one axis disagree", why.op, why.module)
            pin(a, disagree)
            pin(b, disagree)
            return pinned(a.size, disagree)
        return merged
    return _unify_sums(a, b, why)


def _children(tree: Tree) -> list[Tree]:
    tree = normalise(tree)
    return list(tree.children) if isinstance(tree, Prod) else [tree]


def _parts(tree: Tree) -> list[Tree]:
    tree = normalise(tree)
    return list(tree.parts) if isinstance(tree, Cat) else [tree]


def _unify_products(a: Tree, b: Tree, why: Reason) -> Tree | None:
    """Zip two products from the left, splitting the larger child; None where the cumulative sizes form no divisor chain."""
    left, right, out = _children(a), _children(b), []
    while left and right:
        x, y = left[0], right[0]
        if x.size == y.size:
            out.append(unify(x, y, why))
            # Unifying one child may have refined the next ones, so flatten again before going on.
            left, right = _children(product(left[1:])), _children(product(right[1:]))
        else:
            longer, shorter = (left, right) if x.size > y.size else (right, left)
            cut = split_product(longer[0], shorter[0].size, why)
            if cut is None:
                return None
            longer[0:1] = list(cut)
    return product(out)


def _unify_sums(a: Tree, b: Tree, why: Reason) -> Tree:
    left, right, out = _parts(a), _parts(b), []
    while left:
        x, y = left[0], right[0]
        if x.size == y.size:
            out.append(unify(x, y, why))
            left, right = left[1:], right[1:]
        else:
            longer, size = (left, y.size) if x.size > y.size else (right, x.size)
            longer[0:1] = list(split_sum(longer[0], size, why))
        left = [part for item in left for part in _parts(item)]
        right = [part for item in right for part in _parts(item)]
    return concatenation(out)


def split_product(tree: Tree, outer: int, why: Reason) -> tuple[Tree, Tree] | None:
    """View an axis of size n as (outer, n/outer), outer slowest; None where its structure does not allow it."""
    tree = normalise(tree)
    if tree.size % outer:
        return None
    inner = tree.size // outer
    if outer == 1:
        return ONE, tree
    if inner == 1:
        return tree, ONE
    if isinstance(tree, Uni):
        return Uni(outer), Uni(inner)
    if isinstance(tree, Atom):
        pair = (fresh(outer), fresh(inner))
        _bind(tree, product(pair), why)
        return pair
    if isinstance(tree, Prod):
        head: list[Tree] = []
        for i, child in enumerate(tree.children):
            if outer == 1:
                return product(head), product(tree.children[i:])
            if outer % child.size == 0:
                head.append(child)
                outer //= child.size
                continue
            cut = split_product(child, outer, why)
            if cut is None:
                return None
            return product((*head, cut[0])), product((cut[1], *tree.children[i + 1 :]))
        return product(head), ONE
    if any(part.size % inner for part in tree.parts):
        return None
    cuts = []
    for part in tree.parts:
        cut = split_product(part, part.size // inner, why)
        if cut is None:
            return None
        cuts.append(cut)
    shared = cuts[0][1]
    for _, other in cuts[1:]:
        shared = unify(shared, other, why)
    return concatenation(cut[0] for cut in cuts), shared


def split_sum(tree: Tree, left: int, why: Reason) -> tuple[Tree, Tree]:
    """Cut an axis of size n into its first ``left`` entries and the rest (0 < left < n). Never fails."""
    tree = normalise(tree)
    right = tree.size - left
    if isinstance(tree, Uni):
        return uniform(left), uniform(right)
    if isinstance(tree, Atom):
        pair = (fresh(left), fresh(right))
        _bind(tree, concatenation(pair), why)
        return pair
    if isinstance(tree, Cat):
        head: list[Tree] = []
        for i, part in enumerate(tree.parts):
            if left == 0:
                return concatenation(head), concatenation(tree.parts[i:])
            if part.size <= left:
                head.append(part)
                left -= part.size
                continue
            a, b = split_sum(part, left, why)
            return concatenation((*head, a)), concatenation((b, *tree.parts[i + 1 :]))
        raise AssertionError("cut outside the axis")
    first, rest = tree.children[0], product(tree.children[1:])
    row, offset = divmod(left, rest.size)
    if offset == 0:
        a, b = split_sum(first, row, why)
        return product((a, rest)), product((b, rest))
    # The cut falls inside row `row`: single that row out and cut the inner factors inside it.
    before, _, after = split_out(first, row, why)
    a, b = split_sum(rest, offset, why)
    head = [product((before, rest))] if before is not None else []
    tail = [product((after, rest))] if after is not None else []
    return concatenation((*head, a)), concatenation((b, *tail))


def split_out(tree: Tree, index: int, why: Reason) -> tuple[Tree | None, Tree, Tree | None]:
    """Single out entry ``index``: (what comes before or None, the entry, what comes after or None)."""
    tree = normalise(tree)
    before: Tree | None = None
    if index > 0:
        before, tree = split_sum(tree, index, why)
    after: Tree | None = None
    if tree.size > 1:
        tree, after = split_sum(tree, 1, why)
    return before, tree, after
