"""Linear forms over unknown powers, and the kernel of a system of them: exact, sparse, over the rationals or modulo 2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from workbench.symmetry.scaling import SIGN

# One unknown: (parameter, axis, number of the atom's occurrence in the axis).
Unknown = tuple[str, int, int]
Form = dict[Unknown, Fraction]
ZERO: Form = {}
# The power of a tensor that is 0 everywhere (the first state of a recurrence): it goes with any other.
ANY: Form = {("", 0, 0): Fraction(0)}


def minus(a: Form, b: Form, kind: str) -> Form:
    if a is ANY or b is ANY:
        return ANY
    out = dict(a)
    for unknown, value in b.items():
        out[unknown] = out.get(unknown, Fraction(0)) - value
    return reduced(out, kind)


def reduced(form: Form, kind: str) -> Form:
    if kind == SIGN:
        return {unknown: Fraction(1) for unknown, value in form.items() if value % 2}
    return {unknown: value for unknown, value in form.items() if value}


def kernel(unknowns: Sequence[Unknown], equations: Sequence[Form], kind: str) -> list[Mapping[Unknown, int]]:
    """Basis of {d : every equation is 0}, over the rationals or modulo 2, by elimination on sparse rows."""
    order = {unknown: place for place, unknown in enumerate(unknowns)}
    rows: dict[Unknown, Form] = {}  # pivot -> row with a 1 there, other pivots eliminated lazily
    for equation in equations:
        row = dict(equation)
        while row:
            pivot = max(row, key=order.__getitem__)
            if pivot not in rows:
                value = row[pivot]
                rows[pivot] = {unknown: entry / value for unknown, entry in row.items()}
                break
            factor = row[pivot]
            row = minus(row, {unknown: factor * entry for unknown, entry in rows[pivot].items()}, kind)
    free = [unknown for unknown in unknowns if unknown not in rows]
    basis = []
    for one in free:
        vector: Form = {one: Fraction(1)}
        # A row's pivot is its last unknown, so unknowns can be filled in from the first to the last.
        for unknown in unknowns:
            if unknown in rows:
                value = -sum(entry * vector.get(other, Fraction(0)) for other, entry in rows[unknown].items() if other != unknown)
                value = value % 2 if kind == SIGN else value
                if value:
                    vector[unknown] = Fraction(value)
        common = math.lcm(*(value.denominator for value in vector.values()))
        basis.append({unknown: int(value * common) for unknown, value in vector.items()})
    return basis
