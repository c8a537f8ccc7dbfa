"""Index-valued tensors: what their values point at, and who was looked up with them.

The indices of a top-k or an arg-max name units of a free axis. When that axis is permuted the values are renamed with it, so a
look-up with them finds the same unit: the axis need not be pinned as long as the values are only used to look up, to scatter, or
to compare with every position (one-hot). A look-up W[ids] has no expert axis any more, yet each of its slices still belongs to one
expert; it keeps the pointer as a *virtual* coordinate, and a hidden axis may go on depending on the expert through it.

Two pointers are the same only if they hold the same indices, which ``token`` stands for: a new object for every operation that
makes indices, and a record of the step for a part of them. Rank 0 and rank 1 of one top-k point at one axis and are different
tokens. Views and permutations change no token: where an index stands is written as digits (``Digit``) of the axes that hold it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from workbench.symmetry.trees import Tree

Step = Callable[["Pointer"], "Pointer | None"]  # what an operation on places does to a pointer; None: it is lost
# The loop over what is pointed at, in a record of a move: that keeps every entry's pointer, wherever its digits are found after it.
ALONG = "pointed"
# (loop or axis, size, stride): the number (i // stride) mod size of the position i along that axis
Digit = tuple[Hashable, int, int]


@dataclass(frozen=True, eq=False)
class Pointer:
    """tree: the axis that is pointed into; token: which indices; digits: where in the holding tensor the number of an index is
    found, the slowest digit first, as (axis, size, stride); of: the axes that came with the unit that was looked up. Another
    operand may have been looked up with other indices, and its axes belong to those."""

    tree: Tree
    token: Hashable
    digits: tuple[Digit, ...]
    of: frozenset[int] = frozenset()

    def descriptor(self, keys: Sequence[Hashable | None]) -> Hashable:
        """How a record names the loop over ``tree``: the indices, and the loops in which they run."""
        return ("pointed", self.token, tuple((keys[axis], size, stride) for axis, size, stride in self.digits))

    def through(self, keys: Sequence[Hashable | None], result_keys: Sequence[Hashable | None]) -> Pointer | None:
        """The pointer in a result whose axes are ``result_keys``; None where one of its loops was reduced."""
        places = list(result_keys)
        if any(keys[axis] is None or places.count(keys[axis]) != 1 for axis, _, _ in self.digits):
            return None
        digits = tuple((places.index(keys[axis]), size, stride) for axis, size, stride in self.digits)
        own = {keys[axis] for axis in self.of} - {None}
        return replace(self, digits=digits, of=frozenset(axis for axis, key in enumerate(places) if key in own))


def pointing(tree: Tree, token: Hashable, shape: Sequence[int]) -> Pointer:
    """The pointer of new indices of ``shape``."""
    return Pointer(tree, token, tuple((axis, size, 1) for axis, size in enumerate(shape) if size > 1))


def reordered(order: Sequence[int]) -> Step:
    """Result axis d is axis ``order[d]``."""
    places = list(order)
    return lambda pointer: _moved(
        pointer,
        [(places.index(axis), size, stride) for axis, size, stride in pointer.digits],
        [places.index(axis) for axis in pointer.of],
    )


def shifted(offset: int) -> Step:
    """``offset`` new axes in front."""
    return lambda pointer: _moved(
        pointer,
        [(axis + offset, size, stride) for axis, size, stride in pointer.digits],
        [axis + offset for axis in pointer.of],
    )


def taken(dim: int, start: int, stop: int, old: int) -> Step:
    """Entries start…stop−1 of the ``old`` along ``dim``. A part of an axis that holds an index and something else is lost."""

    def step(pointer: Pointer) -> Pointer | None:
        here = [n for n, (axis, _, _) in enumerate(pointer.digits) if axis == dim]
        if not here or stop - start == old:
            return pointer
        if len(here) > 1 or pointer.digits[here[0]] != (dim, old, 1):
            return None
        before, after = pointer.digits[: here[0]], pointer.digits[here[0] + 1 :]
        token = ("part", pointer.token, math.prod(size for _, size, _ in after), old, start, stop)
        middle = ((dim, stop - start, 1),) if stop - start > 1 else ()
        return Pointer(pointer.tree, token, (*before, *middle, *after), pointer.of)

    return step


def reshaped(segments: Sequence[tuple[range, range]], old: Sequence[int], new: Sequence[int]) -> Step:
    """A view, given as the stretches of old and new axes that hold the same entries."""
    stretch_of = {axis: (before, after) for before, after in segments for axis in before}

    def step(pointer: Pointer) -> Pointer | None:
        digits: list[Digit] = []
        for axis, size, stride in pointer.digits:
            before, after = stretch_of[axis]
            # the digit in the position counted over the whole stretch, then cut at the borders of the new axes
            stride *= math.prod(old[axis + 1 : before.stop])
            found: list[Digit] = []
            inner = 1
            for place in reversed(after):
                outer = inner * new[place]
                if size > 1 and stride < outer:
                    part = min(size, outer // stride)
                    if stride % inner or outer % stride or size % part:
                        return None
                    found.insert(0, (place, part, stride // inner))
                    size, stride = size // part, stride * part
                inner = outer
            digits += found
        return _moved(pointer, digits, [place for axis in pointer.of for place in stretch_of[axis][1]])

    return step


def _moved(pointer: Pointer, digits: Iterable[Digit], of: Iterable[int]) -> Pointer:
    """The same indices at other places; digits that are neighbours in one axis are written as one."""
    out: list[Digit] = []
    for axis, size, stride in digits:
        if out and out[-1][0] == axis and out[-1][2] == size * stride:
            out[-1] = (axis, out[-1][1] * size, stride)
        else:
            out.append((axis, size, stride))
    return Pointer(pointer.tree, pointer.token, tuple(out), frozenset(of))
