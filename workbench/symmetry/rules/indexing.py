"""Look-ups: the axis that is indexed keeps its order, all other axes of the table run along.

Indices are inputs or constants here; an operation that makes indices out of a free axis pins that axis itself.
"""

from __future__ import annotations

from typing import Any

import torch

from workbench.symmetry.records import TensorType
from workbench.symmetry.rules import NoRule, rule
from workbench.symmetry.rules.elementwise import broadcast_keys
from workbench.symmetry.rules.reduction import axis_keys
from workbench.symmetry.trees import pin


def look_up(walk, table: TensorType, indices: dict[int, TensorType]) -> TensorType:
    """table[…, indices[d], …]: the result has the indices' broadcast axes where the first indexed axis was (or in front)."""
    why = walk.why("its entries are looked up by position")
    for dim in indices:
        pin(table.axes[dim], why)
    rank = max(len(index.axes) for index in indices.values())
    keys = tuple(None if size == 1 else ("table", d) for d, size in enumerate(table.shape))
    named = [tuple(None if k is None else ("index", k) for k in own) for own in broadcast_keys(list(indices.values()), rank)]
    known = {key for own in named for key in own}
    looked = tuple(("index", k) if ("index", k) in known else None for k in reversed(range(rank)))
    dims = sorted(indices)
    together = dims == list(range(dims[0], dims[-1] + 1))
    rest = [d for d in range(len(table.axes)) if d not in indices]
    before = [d for d in rest if together and d < dims[0]]
    after = [d for d in rest if d not in before]
    result = (*(keys[d] for d in before), *looked, *(keys[d] for d in after))
    return walk.loop([(table, keys), *zip(indices.values(), named, strict=True)], result)


@rule("embedding")
def embedding(walk, args: Any, kwargs: Any) -> Any:
    return look_up(walk, args[0], {0: args[1]})


@rule("index_select")
def index_select(walk, args: Any, kwargs: Any) -> Any:
    table, dim, index = args[:3]
    return look_up(walk, table, {dim % len(table.axes): index})


@rule("index")
def index(walk, args: Any, kwargs: Any) -> Any:
    table, places = args[:2]
    indices = {d: i for d, i in enumerate(places) if i is not None}
    values = [node.meta["val"] for node in walk.node.args[1] if node is not None]
    if any(value.dtype in (torch.bool, torch.uint8) for value in values):
        raise NoRule("a mask selects entries")
    return look_up(walk, table, indices)


@rule("gather")
def gather(walk, args: Any, kwargs: Any) -> Any:
    table, dim, index = args[:3]
    dim %= len(table.axes)
    others = [d for d in range(len(table.axes)) if d != dim]
    if any(table.shape[d] != index.shape[d] for d in others):
        raise NoRule("the indices cover a part of the table only")
    pin(table.axes[dim], walk.why("its entries are looked up by position"))
    own = axis_keys(index)
    keys = tuple(("table", dim) if d == dim else own[d] for d in range(len(table.axes)))
    return walk.loop([(table, keys), (index, own)], own)
