"""What operations do to powers: one table of names for each law, and anything else wants all powers to be 0."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from workbench.symmetry.forms import ANY, ZERO, Form, minus, reduced
from workbench.symmetry.records import Record, TensorType
from workbench.symmetry.scaling import SCALE, SIGN

LINEAR = frozenset(
    "neg clone detach alias contiguous _to_copy lift_fresh_copy to positive sum mean cumsum avg_pool1d avg_pool2d avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d reflection_pad1d reflection_pad2d "
    "reflection_pad3d replication_pad2d replication_pad3d index embedding index_select flip roll real view_as_real "
    "view_as_complex".split()
)
EQUAL = frozenset("add sub rsub where".split())
EXTREMES = frozenset("maximum minimum fmax fmin".split())  # the larger of two, both negated, is the smaller one
PRODUCT = frozenset("mul mm bmm mv dot _trilinear".split())
QUOTIENT = frozenset("div true_divide".split())
WITH_ADDEND = frozenset("addmm baddbmm convolution".split())
# positively homogeneous of degree 1
HOMOGENEOUS = frozenset(
    "relu leaky_relu abs amax amin max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d linalg_vector_norm "
    "_embedding_bag_forward_only _embedding_bag".split()
)
ODD = frozenset("tanh sin asin atan erf sinh asinh tan sign sgn erfinv".split())
EVEN = frozenset("abs cos cosh linalg_vector_norm".split())
# a positive scale does not change the result
SCALE_FREE = frozenset("sign sgn".split())
COMPARISONS = frozenset("gt ge lt le eq ne".split())
BATCH_NORM = frozenset(["_native_batch_norm_legit_no_training"])
NORMS = frozenset("native_layer_norm _fused_rms_norm rms_norm native_group_norm _native_batch_norm_legit".split())
RMS = frozenset("_fused_rms_norm rms_norm".split())
# where a normalisation has its weight and its bias among its arguments
AFFINE = {"native_layer_norm": (2, 3), "_fused_rms_norm": (2,), "rms_norm": (2,)}
CASTS = frozenset("_to_copy to".split())
WITH_POSITIONS = frozenset("max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d".split())


class DegreeRule:
    """What one loop does to powers: (power of the result, what must be 0)."""

    def __init__(self, record: Record, kind: str) -> None:
        self.op, self.kind, self.record = record.op, kind, record
        self.args = () if record.node is None else record.node.args
        # A number known only at run time is any number.
        read = [float("nan") if isinstance(a, Node) and not isinstance(a.meta.get("val"), Tensor) else a for a in self.args]
        self.numbers = [a for a in read if isinstance(a, int | float)]  # True + x is 1 + x

    def of(self, forms: Sequence[Form | None], kept: bool) -> tuple[Form, list[Form]]:
        op, scale = self.op, self.kind == SCALE
        present = [form for form in forms if form is not None]
        nothing = (ZERO, present)
        if op in PRODUCT | WITH_ADDEND and any(is_zero(tensor) for tensor, _ in self.record.operands[:2]):
            return (forms[2] or ZERO if op in WITH_ADDEND and len(forms) > 2 else ANY), []
        if self._rounds():
            return nothing
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
        if op in EQUAL or (scale and op in EXTREMES):
            return self._equal(forms)
        if op in BATCH_NORM:
            return self._batch_norm(forms)
        if op in NORMS:
            return self._norm(forms)
        if op in ("pow", "sqrt", "rsqrt", "reciprocal", "square"):
            return self._power(present) or nothing
        if op in COMPARISONS:
            return self._comparison(forms) if scale or op in ("eq", "ne") else nothing
        if op in ("clamp", "clamp_min", "clamp_max", "hardtanh") and len(forms) == 1:
            return (present[0], []) if self._clamps_alike() else nothing
        if scale and op in SCALE_FREE:
            return ZERO, []
        if op == "linalg_vector_norm" and self.numbers[:1] == [0]:
            return ZERO, []  # it counts the entries that are not 0
        if scale and op in HOMOGENEOUS:
            return present[0], []
        if not scale and op in EVEN:
            return ZERO, []
        if not scale and op in ODD:
            return present[0], []
        return nothing

    def is_linear(self, carried: Sequence[bool], kept: bool) -> bool:
        """Whether the loop is a linear map of the one operand that carries the leaf, or pairs two off; carried: which do."""
        op = self.op
        if self._rounds():
            return False
        if op == "_trilinear":
            return sum(carried) == (1 if kept else 2)
        if op in WITH_ADDEND | {"mm", "bmm", "mv", "dot"}:
            return (sum(carried[:2]) == 1 and all(carried[2:])) if kept else sum(carried[:2]) == 2
        if op == "mul":
            return kept and sum(carried) == 1
        if op in QUOTIENT:
            return kept and carried[0] and not any(carried[1:])
        if op in ("add", "sub"):
            return kept and all(carried) and not any(number != 0 for number in self.numbers)
        return op in LINEAR and kept and carried[0]

    def _rounds(self) -> bool:
        """Whether the result is rounded: a quotient with a rounding mode, or a copy as another type than a floating one."""
        if self.record.node is None:
            return False
        if self.op in QUOTIENT:
            return self.record.node.kwargs.get("rounding_mode") is not None
        made = pytree.tree_leaves(self.record.node.meta.get("val"))[:1]
        return self.op in CASTS and not all(isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex()) for t in made)

    def _comparison(self, forms: Sequence[Form | None]) -> tuple[Form, list[Form]]:
        """Two that scale alike compare as before, and so does one with 0."""
        present = [form for form in forms if form is not None]
        if len(self.record.operands) == 1:
            return ZERO, [] if self.numbers == [0] else present
        return ZERO, self._equal(forms)[1]

    def _clamps_alike(self) -> bool:
        """Bounds of 0 go with any positive scale, opposite ones with a sign."""
        if self.record.node is None or self.record.node.kwargs:
            return False
        given = self.args[1:3]
        missing = (-1, 1) if self.op == "hardtanh" else (None, None)
        low, high = (None, *given) if self.op == "clamp_max" else (*given, *missing[len(given) :])
        if self.kind == SCALE:
            return all(bound is None or bound == 0 for bound in (low, high))
        return isinstance(low, int | float) and isinstance(high, int | float) and low == -high

    def _table(self, forms: Sequence[Form | None]) -> tuple[Form, list[Form]]:
        """A look-up hands on the table's powers; indices have none."""
        return forms[0] or ZERO, [form for form in forms[1:] if form is not None]

    def _equal(self, forms: Sequence[Form | None]) -> tuple[Form, list[Form]]:
        operands = list(zip(self.record.operands, forms, strict=True))
        equations: list[Form] = []
        if self.op == "where":
            equations += [form for _, form in operands[:1] if form is not None]
            operands = operands[1:]
        used = [ZERO if form is None else form for (tensor, _), form in operands if form is not ANY and not is_zero(tensor)]
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
        given = [place < len(self.args) and self.args[place] is not None for place in AFFINE.get(self.op, (1, 2))]
        affine = iter([form or ZERO for form in forms[2:]])
        weight, *bias = (next(affine) if here else None for here in given)
        result = self._sum([x if free else ZERO, weight or ZERO])
        return result, ([] if free else [x]) + [self._minus(result, b) for b in bias if b is not None]

    def _power(self, present: Sequence[Form]) -> tuple[Form, list[Form]] | None:
        named = {"sqrt": Fraction(1, 2), "rsqrt": Fraction(-1, 2), "reciprocal": Fraction(-1), "square": Fraction(2)}
        exponent = named.get(self.op)
        if exponent is None:
            if len(self.args) < 2 or not isinstance(self.args[0], Node) or not isinstance(self.args[1], int | float):
                return None
            exponent = Fraction(self.args[1]).limit_denominator(1000)
            if float(exponent) != self.args[1]:
                return None
        if present[0] is ANY:
            return None
        if self.kind == SCALE:
            return reduced({unknown: exponent * value for unknown, value in present[0].items()}, self.kind), []
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
        return reduced(out, self.kind)

    def _minus(self, a: Form, b: Form) -> Form:
        return minus(a, b, self.kind)


def is_zero(tensor: TensorType) -> bool:
    """A constant that is 0 everywhere goes with any power."""
    value = tensor.value
    return value is not None and not value.is_meta and not bool((value != 0).any())
