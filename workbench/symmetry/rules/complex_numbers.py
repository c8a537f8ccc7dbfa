"""Complex numbers as pairs of real ones, and Fourier transforms, whose frequencies and times are ordered."""

from __future__ import annotations

from typing import Any

from workbench.symmetry.rules import rule
from workbench.symmetry.rules.elementwise import elementwise
from workbench.symmetry.rules.reduction import axis_keys
from workbench.symmetry.trees import pin, pinned

rule("polar", "complex", "angle", "real", "imag", "_conj", "_conj_physical", "conj_physical")(elementwise)


@rule("view_as_real")
def as_pairs(walk, args: Any, kwargs: Any) -> Any:
    """A new last axis: the real part, then the imaginary part."""
    tensor = args[0]
    keys = axis_keys(tensor)
    made = walk.loop([(tensor, keys)], (*keys, None))
    made.axes[-1] = pinned(2, walk.why("a real and an imaginary part"))
    return made


@rule("view_as_complex")
def from_pairs(walk, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    pin(tensor.axes[-1], walk.why("a real and an imaginary part"))
    keys = axis_keys(tensor)
    return walk.loop([(tensor, keys)], keys[:-1])


@rule("_fft_c2c", "_fft_r2c", "_fft_c2r")
def fourier(walk, args: Any, kwargs: Any) -> Any:
    """Along the transformed axes entries have an order; the others run along."""
    tensor, dims = args[0], {dim % len(args[0].axes) for dim in args[1]}
    why = walk.why("times and frequencies are ordered")
    for dim in dims:
        pin(tensor.axes[dim], why)
    keys = axis_keys(tensor)
    made = walk.loop([(tensor, keys)], tuple(None if axis in dims else key for axis, key in enumerate(keys)))
    for dim in dims:
        made.axes[dim] = pinned(walk.shape[dim], why)
    return made
