"""Scales and signs by counting degrees: with which power does an entry of a tensor scale when unit j is scaled by s_j?

Let every leaf of a factor f in a parameter have an unknown power d: its entries at unit j are multiplied by s_j^d. The records say
what becomes of the powers: a product adds them, a sum wants them equal, a contraction over the units wants the sum to be 0, relu
hands a positive scale on, tanh a sign. Outputs have power 0. What is left is a linear system with one unknown per leaf; its kernel
over the rationals is the group of positive scales, its kernel over GF(2) that of signs. Nothing in it knows a layer by name: the
scales of ReLU units, of BatchNorm, of gated layers, of value and output heads, the signs of an RMSNorm stream all come out.

An operation that is not in the tables below wants all its powers to be 0: never unknown, never free.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from torch.fx import Node

from workbench.symmetry.interpreter import Interpreter
from workbench.symmetry.leaves import Leaf, Leaves, Mismatch, carried_out, looped_leaves, moved_leaves
from workbench.symmetry.records import Record, TensorType
from workbench.symmetry.scaling import SCALE, SIGN
from workbench.symmetry.trees import Atom

# One unknown: (parameter, axis, number of the atom's occurrence in the axis).
Unknown = tuple[str, int, int]
Form = dict[Unknown, Fraction]
ZERO: Form = {}
# The power of a tensor that is 0 everywhere (the first state of a recurrence): it goes with any other.
ANY: Form = {("", 0, 0): Fraction(0)}

LINEAR = frozenset(
    "neg clone detach alias contiguous _to_copy lift_fresh_copy to positive sum mean cumsum avg_pool1d avg_pool2d avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d reflection_pad1d reflection_pad2d "
    "reflection_pad3d replication_pad2d replication_pad3d index embedding index_select flip roll real".split()
)
EQUAL = frozenset("add sub rsub maximum minimum fmax fmin where".split())
PRODUCT = frozenset("mul mm bmm mv dot".split())
QUOTIENT = frozenset("div true_divide".split())
WITH_ADDEND = frozenset("addmm baddbmm convolution".split())
# positively homogeneous of degree 1
HOMOGENEOUS = frozenset(
    "relu leaky_relu abs amax amin max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d linalg_vector_norm".split()
)
ODD = frozenset("tanh sin asin atan erf sinh asinh tan sign sgn erfinv".split())
EVEN = frozenset("abs cos cosh linalg_vector_norm".split())
# a positive scale does not change the result
SCALE_FREE = frozenset("sign sgn".split())
COMPARISONS = frozenset("gt ge lt le eq ne".split())
BATCH_NORM = frozenset(["_native_batch_norm_legit_no_training"])
NORMS = frozenset("native_layer_norm _fused_rms_norm rms_norm native_group_norm _native_batch_norm_legit".split())
RMS = frozenset("_fused_rms_norm rms_norm".split())


@dataclass(frozen=True)
class Power:
    """One basis vector of a kernel: unit j of ``atom`` may be scaled (or flipped), with these powers in the parameters."""

    atom: Atom
    kind: str
    powers: Mapping[Unknown, int]


@dataclass(frozen=True)
class Powers:
    """found: a basis of the scales or signs of every atom that two or more leaves of parameters carry; linear: atoms that nothing
    but linear maps touch, so that a whole GL(n) acts (W_out M⁻¹, M W_in), of which the scales are the diagonal part."""

    found: tuple[Power, ...]
    linear: tuple[Atom, ...]


def find_powers(walk: Interpreter, kind: str) -> Powers:
    """Scales (kind "scale") or signs ("sign")."""
    analysis = _Analysis(walk, kind)
    analysis.run()
    found = [Power(atom, kind, vector) for atom in analysis.wanted for vector in analysis.kernel(atom)]
    linear = [
        power.atom
        for power in found
        if kind == SCALE
        and power.atom not in analysis.curved
        and len(power.powers) == len(analysis.unknowns[power.atom])
        and all(abs(value) == 1 for value in power.powers.values())
    ]
    return Powers(tuple(found), tuple(linear))


class _Analysis:
    def __init__(self, walk: Interpreter, kind: str) -> None:
        self.walk, self.kind = walk, kind
        self.leaves: dict[TensorType, Leaves] = {}
        self.forms: dict[TensorType, dict[Leaf, Form]] = {}
        self.equations: dict[Atom, list[Form]] = defaultdict(list)
        self.unknowns: dict[Atom, list[Unknown]] = defaultdict(list)
        self.lost: set[Atom] = set()  # something was not understood
        self.curved: set[Atom] = set()  # something other than a linear map touched it
        for name, tensor in walk.parameters.items():
            own = self._leaves(tensor)
            self.forms[tensor] = {}
            for leaf in own:
                unknown = (name, leaf.axis, leaf.number)
                self.unknowns[leaf.atom].append(unknown)
                self.forms[tensor][leaf] = {unknown: Fraction(1)}
        self.wanted = [atom for atom, unknowns in self.unknowns.items() if len(unknowns) > 1]
        self._wanted = set(self.wanted)
        self._named = {node.name for node in walk.capture.program.graph.nodes}

    def _leaves(self, tensor: TensorType) -> Leaves:
        tensor = carried_out(tensor)
        if tensor not in self.leaves:
            self.leaves[tensor] = Leaves(tensor)
        return self.leaves[tensor]

    def _form(self, tensor: TensorType, leaf: Leaf) -> Form:
        """The powers of a leaf; 0 in inputs, constants and positions."""
        known = self.forms.get(carried_out(tensor))
        if known is None:
            if tensor.value is None and tensor.name in self._named and not self._is_input(tensor):
                self.lost.add(leaf.atom)  # a result without a record
            return ZERO
        return known.get(leaf, ZERO)

    def _is_input(self, tensor: TensorType) -> bool:
        return any(role[1] == tensor.name for role in self.walk.capture.roles.values())

    def _force(self, atom: Atom, *forms: Form) -> None:
        self.equations[atom] += [form for form in forms if form and form is not ANY]

    def run(self) -> None:
        for record in self.walk.records:
            sides = [carried_out(tensor) for tensor, _ in (*record.operands, *record.results)]
            if not any(leaf.atom in self._wanted for tensor in sides for leaf in self._leaves(tensor)):
                continue
            record = Record(
                record.kind,
                record.op,
                record.module,
                tuple((carried_out(tensor), keys) for tensor, keys in record.operands),
                tuple((carried_out(tensor), keys) for tensor, keys in record.results),
                record.node,
                record.cut,
            )
            for tensor, _ in record.results:
                self.forms.setdefault(tensor, {})
            try:
                (self._move if record.kind == "move" else self._loop if record.kind == "loop" else self._opaque)(record)
            except Mismatch:
                self._opaque(record)
                self.lost |= {leaf.atom for tensor in sides for leaf in self._leaves(tensor)}
        for tensor in self.walk.outputs:
            for leaf in self._leaves(tensor):
                self._force(leaf.atom, self._form(tensor, leaf))

    def _opaque(self, record: Record) -> None:
        for tensor, _ in record.operands:
            for leaf in self._leaves(tensor):
                self.curved.add(leaf.atom)
                self._force(leaf.atom, self._form(tensor, leaf))

    def _move(self, record: Record) -> None:
        result = record.results[0][0]
        out = self.forms[result]
        for number, one, other in moved_leaves(record, self._all(record)):
            form = self._form(record.operands[number][0], one)
            if other in out:
                self._force(other.atom, _minus(out[other], form, self.kind))
            else:
                out[other] = form

    def _all(self, record: Record) -> dict[TensorType, Leaves]:
        return {tensor: self._leaves(tensor) for tensor, _ in (*record.operands, *record.results)}

    def _loop(self, record: Record) -> None:
        rule = _Rule(record, self.kind)
        # A leaf in an axis that takes part in no loop is not accounted for.
        for tensor, keys in record.operands:
            for leaf in self._leaves(tensor):
                if keys[leaf.axis] is None:
                    self._force(leaf.atom, self._form(tensor, leaf))
        for _, atom, operands, results in looped_leaves(record, self._all(record)):
            if atom not in self._wanted:
                continue
            forms = [None if leaf is None else self._form(t, leaf) for (t, _), leaf in zip(record.operands, operands, strict=True)]
            kept = any(leaf is not None for leaf in results)
            if not rule.is_linear([leaf is not None for leaf in operands], kept):
                self.curved.add(atom)
            form, equations = rule.of(forms, kept)
            self._force(atom, *equations)
            if not kept:
                self._force(atom, form)
            for number, ((tensor, _), leaf) in enumerate(zip(record.results, results, strict=True)):
                if leaf is not None:
                    self.forms[tensor][leaf] = form if number == 0 or record.op not in WITH_POSITIONS else ZERO

    def kernel(self, atom: Atom) -> list[Mapping[Unknown, int]]:
        """A basis of the solutions, in whole numbers."""
        return [] if atom in self.lost else _kernel(self.unknowns[atom], self.equations[atom], self.kind)


WITH_POSITIONS = frozenset("max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d".split())


class _Rule:
    """What one loop does to powers: (power of the result, what must be 0)."""

    def __init__(self, record: Record, kind: str) -> None:
        self.op, self.kind, self.record = record.op, kind, record
        args = () if record.node is None else record.node.args
        self.numbers = [a for a in args if isinstance(a, int | float) and not isinstance(a, bool)]
        self.args = args

    def of(self, forms: Sequence[Form | None], kept: bool) -> tuple[Form, list[Form]]:
        op, scale = self.op, self.kind == SCALE
        present = [form for form in forms if form is not None]
        nothing = (ZERO, present)
        if op in PRODUCT | WITH_ADDEND and any(_is_zero(tensor) for tensor, _ in self.record.operands[:2]):
            addends = [form for form in forms[2:] if form is not None]
            return (addends[0] if addends else ANY), []
        if op in LINEAR:
            return self._table(forms) if op in ("index", "embedding", "index_select") else (present[0], [])
        if op in PRODUCT:
            return self._sum(present), []
        if op in WITH_ADDEND and forms and len(forms) >= 2:
            total = self._sum([form for form in forms[:2] if form is not None])
            addends = [form if form is not None else ZERO for form in forms[2:]]
            if not kept:
                return total, []
            return total, [self._minus(total, addend) for addend in addends]
        if op in QUOTIENT:
            if len(self.args) > 1 and not isinstance(self.args[0], Node):
                return nothing
            top = forms[0] or ZERO
            return self._minus(top, (forms[1] if len(forms) > 1 else None) or ZERO), []
        if op in EQUAL:
            return self._equal(forms)
        if op in BATCH_NORM:
            return self._batch_norm(forms)
        if op in NORMS:
            return self._norm(forms)
        if op in ("pow", "sqrt", "rsqrt", "reciprocal", "square"):
            return self._power(present) or nothing
        if op in COMPARISONS and self.numbers == [0] and len(forms) == 1:
            return (ZERO, []) if scale or op in ("eq", "ne") else nothing
        if op in ("clamp", "clamp_min") and scale and self.numbers == [0] and len(forms) == 1:
            return present[0], []
        if scale and op in SCALE_FREE:
            return ZERO, []
        if scale and op in HOMOGENEOUS:
            return present[0], []
        if not scale and op in EVEN:
            return ZERO, []
        if not scale and op in ODD:
            return present[0], []
        return nothing

    def is_linear(self, carried: Sequence[bool], kept: bool) -> bool:
        """Whether the loop is a linear map of the one operand that carries the leaf, or pairs two of them off; carried: which do."""
        op = self.op
        if op in WITH_ADDEND | {"mm", "bmm", "mv", "dot"}:
            return (sum(carried[:2]) == 1 and all(carried[2:])) if kept else sum(carried[:2]) == 2
        if op == "mul":
            return kept and sum(carried) == 1
        if op in QUOTIENT:
            return kept and carried[0] and not any(carried[1:])
        if op in ("add", "sub"):
            return kept and all(carried) and not any(number != 0 for number in self.numbers)
        return op in LINEAR and kept and carried[0]

    def _table(self, forms: Sequence[Form | None]) -> tuple[Form, list[Form]]:
        """A look-up hands on the table's powers; indices have none."""
        return forms[0] or ZERO, [form for form in forms[1:] if form is not None]

    def _equal(self, forms: Sequence[Form | None]) -> tuple[Form, list[Form]]:
        operands = list(zip(self.record.operands, forms, strict=True))
        equations: list[Form] = []
        if self.op == "where":
            equations += [form for _, form in operands[:1] if form is not None]
            operands = operands[1:]
        used = [ZERO if form is None else form for (tensor, _), form in operands if form is not ANY and not _is_zero(tensor)]
        if not used:
            return (ANY if operands else ZERO), equations
        if any(number != 0 for number in self.numbers):
            return ZERO, [*equations, *used]  # a number beside the tensor does not scale
        return used[0], equations + [self._minus(used[0], other) for other in used[1:]]

    def _batch_norm(self, forms: Sequence[Form | None]) -> tuple[Form, list[Form]]:
        """(x − mean) / √(var + ε) · w + b: var does not scale, because of ε."""
        if len(forms) == 1:
            return forms[0] or ZERO, []  # the saved mean
        given = [argument is not None for argument in self.args[:5]]
        rest = iter(forms)
        x, w, b, mean, var = (next(rest) if here else None for here in given)
        result = self._sum([form for form in (x, w) if form is not None])
        equations = [self._minus(x or ZERO, mean or ZERO), var or ZERO]
        return result, equations + ([self._minus(result, b or ZERO)] if given[2] else [])

    def _norm(self, forms: Sequence[Form | None]) -> tuple[Form, list[Form]]:
        """Statistics of x, or x with its statistics taken out, times w, plus b. RMSNorm sees no signs."""
        x = forms[0] or ZERO
        free = self.kind == SIGN and self.op in RMS
        if len(forms) == 1:
            return ZERO, [] if free else [x]
        affine = [form or ZERO for form in forms[2:]]
        result = self._sum([x if free else ZERO, *affine[:1]])
        return result, ([] if free else [x]) + [self._minus(result, b) for b in affine[1:]]

    def _power(self, present: Sequence[Form]) -> tuple[Form, list[Form]] | None:
        named = {"sqrt": Fraction(1, 2), "rsqrt": Fraction(-1, 2), "reciprocal": Fraction(-1), "square": Fraction(2)}
        exponent = named.get(self.op)
        if exponent is None:
            if len(self.args) < 2 or not isinstance(self.args[0], Node) or not isinstance(self.args[1], int | float):
                return None
            exponent = Fraction(self.args[1]).limit_denominator(1000)
        if present[0] is ANY:
            return None
        if self.kind == SCALE:
            return {unknown: exponent * value for unknown, value in present[0].items()}, []
        if exponent.denominator != 1:
            return None
        return (present[0] if exponent % 2 else ZERO), []

    def _sum(self, forms: Sequence[Form]) -> Form:
        out: Form = {}
        if any(form is ANY for form in forms):
            return ANY
        for form in forms:
            for unknown, value in form.items():
                out[unknown] = out.get(unknown, Fraction(0)) + value
        return _reduced(out, self.kind)

    def _minus(self, a: Form, b: Form) -> Form:
        return _minus(a, b, self.kind)


def _is_zero(tensor: TensorType) -> bool:
    """A constant that is 0 everywhere goes with any power."""
    value = tensor.value
    return value is not None and not value.is_meta and not bool((value != 0).any())


def _minus(a: Form, b: Form, kind: str) -> Form:
    if a is ANY or b is ANY:
        return ANY
    out = dict(a)
    for unknown, value in b.items():
        out[unknown] = out.get(unknown, Fraction(0)) - value
    return _reduced(out, kind)


def _reduced(form: Form, kind: str) -> Form:
    if kind == SIGN:
        return {unknown: Fraction(1) for unknown, value in form.items() if value % 2}
    return {unknown: value for unknown, value in form.items() if value}


def _kernel(unknowns: Sequence[Unknown], equations: Sequence[Form], kind: str) -> list[Mapping[Unknown, int]]:
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
            row = _minus(row, {unknown: factor * entry for unknown, entry in rows[pivot].items()}, kind)
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


def without_contained(powers: Sequence[Power], over: Mapping[Atom, Sequence[Atom]]) -> list[Power]:
    """The powers without those that a dependent factor's contain: a scale of a head is one of every unit in it, all alike.

    A power of b is contained where, tensor by tensor, it is a combination of powers of one f that has a copy for each value of b.
    """
    kept = []
    for power in powers:
        inner = defaultdict(list)
        for other in powers:
            if other.kind == power.kind and power.atom in over.get(other.atom, ()):
                inner[other.atom].append(_by_tensor(other))
        if not any(_spans(vectors, _by_tensor(power), power.kind) for vectors in inner.values()):
            kept.append(power)
    return kept


def _by_tensor(power: Power) -> Form:
    out: Form = {}
    for (tensor, _, _), value in power.powers.items():
        out[tensor, 0, 0] = out.get((tensor, 0, 0), Fraction(0)) + value
    return _reduced(out, power.kind)


def _spans(vectors: Sequence[Form], wanted: Form, kind: str) -> bool:
    rows: dict[Unknown, Form] = {}
    for vector in [*vectors, wanted]:
        row = dict(vector)
        while row:
            pivot = max(row)
            if pivot not in rows:
                if vector is wanted:
                    return False
                rows[pivot] = {unknown: entry / row[pivot] for unknown, entry in row.items()}
                break
            factor = row[pivot]
            row = _minus(row, {unknown: factor * entry for unknown, entry in rows[pivot].items()}, kind)
    return True
