"""Factors that always stand side by side in the same sums, and together are one larger factor.

A shortcut that pads channels on both sides of a narrower stream leaves the padded stretches apart: first p channels, then the old
stream, then p more. The walk finds S_p × S_p, since a stretch of an axis is contiguous to it; if nothing tells the two stretches
apart, S_2p is true. Candidates are read off the layouts, written as one factor in an axis whose entries are put in another order,
and kept only if the proof by test holds: the two stretches might have been filled with different constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from workbench.symmetry.entries import TensorEntry
from workbench.symmetry.group import Symmetry, build
from workbench.symmetry.layout import Layout, Leaf, Product, Sum, factors


def sibling_factors(symmetry: Symmetry) -> list[tuple[str, ...]]:
    """Sets of two or more factors that occur only as parts of the same sums, once each, with the same rest beside them."""
    free = [name for name, group in symmetry.groups.items() if not group.over and not _is_outer(symmetry, name)]
    seen: dict[str, list[tuple[str, int, object]]] = {name: [] for name in free}
    for name, entry in symmetry.tensors.items():
        for axis, layout in enumerate(entry.layouts):
            parts = layout.parts if isinstance(layout, Sum) else ()
            held = {head[0]: head[1] for part in parts if (head := _head(part)) is not None}
            for factor in factors(layout):
                if factor in seen:
                    alone = factor in held and list(factors(layout)).count(factor) == 1
                    seen[factor].append((name, axis, held[factor] if alone else None))
    classes: dict[tuple, list[str]] = {}
    for name, places in seen.items():
        if places and all(rest is not None for _, _, rest in places):
            classes.setdefault(tuple(places), []).append(name)
    return [tuple(names) for names in classes.values() if len(names) > 1]


def _is_outer(symmetry: Symmetry, name: str) -> bool:
    return any(name in group.over for group in symmetry.groups.values())


def _head(part: Layout) -> tuple[str, tuple[Layout, ...]] | None:
    """The factor that a part begins with, and what stands beside it."""
    first, *rest = part.children if isinstance(part, Product) else (part,)
    return (first.factor, tuple(rest)) if isinstance(first, Leaf) and first.factor is not None else None


def merge_siblings(symmetry: Symmetry, classes: Sequence[tuple[str, ...]]) -> Symmetry:
    """The larger group in which every class is one factor, under the name of its first member."""
    groups = symmetry.groups
    into = {name: names[0] for names in classes for name in names}
    sizes = {names[0]: sum(groups[name].size for name in names) for names in classes}
    tensors = {name: _merged_entry(entry, into, sizes) for name, entry in symmetry.tensors.items()}
    specs = {
        name: {
            "size": sizes.get(name, group.size),
            "kind": group.kind,
            "over": group.over,
            "over_sizes": group.over_sizes,
            "ties": tuple(dict.fromkeys(tie for other in groups if into.get(other, other) == name for tie in groups[other].ties)),
        }
        for name, group in groups.items()
        if into.get(name, name) == name
    }
    built = build(tensors, specs, aliases=symmetry.aliases, stacks=symmetry.stacks)
    return replace(
        built, pinned=symmetry.pinned, unknown_ops=symmetry.unknown_ops, notes=symmetry.notes, outputs=symmetry.outputs
    )


def _merged_entry(entry: TensorEntry, into: Mapping[str, str], sizes: Mapping[str, int]) -> TensorEntry:
    layouts, orders = [], []
    for layout in entry.layouts:
        if not any(name in into for name in factors(layout)):
            layouts.append(layout)
            orders.append(None)
            continue
        assert isinstance(layout, Sum)
        starts = itertools.accumulate((part.size for part in layout.parts), initial=0)
        parts: list[Layout] = []
        order: list[int] = []
        placed: set[str] = set()
        pieces = [(part, range(start, start + part.size)) for part, start in zip(layout.parts, starts, strict=False)]
        for part, span in pieces:
            head = _head(part)
            whole = into.get(head[0]) if head is not None else None
            if whole is None:
                parts.append(part)
                order += span
            elif whole not in placed:
                placed.add(whole)
                leaf = Leaf(whole, sizes[whole])
                parts.append(Product((leaf, *head[1])) if head[1] else leaf)
                for other, places in pieces:
                    beside = _head(other)
                    if beside is not None and into.get(beside[0]) == whole:
                        order += places
        layouts.append(parts[0] if len(parts) == 1 else Sum(tuple(parts)))
        orders.append(None if order == sorted(order) else tuple(order))
    return replace(entry, layouts=tuple(layouts), orders=tuple(orders) if any(orders) else ())
