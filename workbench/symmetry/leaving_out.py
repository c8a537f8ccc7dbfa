"""Does every leaf of a factor have to move? Each is left behind once while the others move: the group's negative control."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from workbench.symmetry.bench import Bench
from workbench.symmetry.element import Element
from workbench.symmetry.occurrences import occurrences

if TYPE_CHECKING:
    from workbench.symmetry.proof import SymmetryCheck

NEEDED = 1e-7  # leaving out a leaf that matters changes the output by at least this much


def leave_one_out(bench: Bench, verdict: SymmetryCheck, runs: int) -> SymmetryCheck:
    """``verdict`` with what moves for nothing.

    runs: how many a small model may take; where they are not enough for all leaves, every n-th is left out.

    Elements without fixed points are used: a random one of S_2 is often the identity.
    """
    found = occurrences(bench.symmetry)
    tests = [leaf for leaves in found.values() if len(leaves) > 1 for leaf in leaves]
    affordable = max(1, runs // (1 + sum(w.numel() for w in bench.weights.values()) // 10**6))
    tested = tests[:: max(1, math.ceil(len(tests) / affordable))]
    dead = [leaf for leaf in tested if bench.error(_roll(bench, leaf.factor), leaf) < NEEDED]
    # A tensor of one leaf is dead as a whole; of several, each may do without its move and yet not all of them.
    whole = {(leaf.factor, leaf.tensor) for leaf in dead if sum(o.tensor == leaf.tensor for o in found[leaf.factor]) == 1}
    return replace(
        verdict,
        dead=tuple(dict.fromkeys((o.factor, o.tensor) for o in dead if (o.factor, o.tensor) in whole)),
        dead_parts=tuple((o.factor, o.tensor, o.axis, o.start, o.stop) for o in dead if (o.factor, o.tensor) not in whole),
        needed=len(tested) - len(dead),
        untested=len(tests) - len(tested),
    )


def _roll(bench: Bench, name: str) -> Element:
    """i ↦ i − 1 in every copy of the factor ``name``, which alone moves."""
    group = bench.symmetry.groups[name]
    roll = torch.arange(group.size).roll(1).expand(*group.over_sizes, group.size).clone()
    return Element({name: roll}, {name: group.over})
