"""Scales and signs by counting degrees: with which power does an entry of a tensor scale when unit j is scaled by s_j?

Let every leaf of a factor f in a parameter have an unknown power d: its entries at unit j are multiplied by s_j^d. The records say
what becomes of the powers: a product adds them, a sum wants them equal, a contraction over the units wants the sum to be 0, relu
hands a positive scale on, tanh a sign. Outputs have power 0. What is left is a linear system with one unknown per leaf; its kernel
over the rationals is the group of positive scales, its kernel over GF(2) that of signs. Nothing in it knows a layer by name: the
scales of ReLU units, of BatchNorm, of gated layers, of value and output heads, the signs of an RMSNorm stream all come out.

An operation that is not in the tables of ``degree_rules`` wants all its powers to be 0: never unknown, never free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from workbench.symmetry.degree_rules import WITH_POSITIONS, DegreeRule, is_zero
from workbench.symmetry.forms import ANY, ZERO, Form, Unknown, kernel, minus, reduced
from workbench.symmetry.interpreter import Interpreter
from workbench.symmetry.leaves import Leaf, Leaves, Mismatch, carried_out, looped_leaves, moved_leaves
from workbench.symmetry.records import Record, TensorType
from workbench.symmetry.scaling import SCALE
from workbench.symmetry.trees import Atom


@dataclass(frozen=True)
class Power:
    """One basis vector of a kernel: unit j of ``atom`` may be scaled (or flipped), with these powers in the parameters."""

    atom: Atom
    kind: str
    powers: Mapping[Unknown, int]


@dataclass(frozen=True)
class Powers:
    """found: a basis of the scales or signs of every atom that two or more leaves of parameters carry; linear: those of atoms that
    nothing but linear maps touch, so that a whole GL(n) acts (W_out M⁻¹, M W_in), of which the scales are the diagonal part."""

    found: tuple[Power, ...]
    linear: tuple[Power, ...]


def find_powers(walk: Interpreter, kind: str) -> Powers:
    """Scales (kind "scale") or signs ("sign")."""
    analysis = _Analysis(walk, kind)
    analysis.run()
    found = [Power(atom, kind, vector) for atom in analysis.wanted for vector in analysis.kernel(atom)]
    linear = [
        power
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
            tensor = record.operands[number][0]
            if one is None and is_zero(tensor):
                continue
            # Entries that are constant where others have units do not scale, so nor may those beside them.
            form = ZERO if one is None else self._form(tensor, one)
            if other in out and out[other] is not ANY:
                self._force(other.atom, minus(out[other], form, self.kind))
            else:
                out[other] = form

    def _all(self, record: Record) -> dict[TensorType, Leaves]:
        return {tensor: self._leaves(tensor) for tensor, _ in (*record.operands, *record.results)}

    def _loop(self, record: Record) -> None:
        rule = DegreeRule(record, self.kind)
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
        return [] if atom in self.lost else kernel(self.unknowns[atom], self.equations[atom], self.kind)


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
    return reduced(out, power.kind)


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
            row = minus(row, {unknown: factor * entry for unknown, entry in rows[pivot].items()}, kind)
    return True
