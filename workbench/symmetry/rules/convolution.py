"""Convolutions of any dimension, grouped, depthwise and transposed: channels loop, positions are ordered.

A grouped convolution is viewed as x(n, g, c, …), w(g, o, c, …), b(g, o) and needs nothing else: depthwise is the case c = 1.
"""

from __future__ import annotations

from typing import Any

from workbench.symmetry.rules import rule
from workbench.symmetry.rules.views import reshape
from workbench.symmetry.trees import pin, pinned


@rule("convolution")
def convolution(walk, args: Any, kwargs: Any) -> Any:
    x, w, b, stride, padding, _, transposed, _, groups = args[:9]
    space = len(w.axes) - 2
    shape = walk.shape
    batched = len(x.axes) == space + 2
    pointwise = all(n == 1 for n in w.shape[2:]) and not any(padding) and all(s == 1 for s in stride)
    if not pointwise:
        ordered = walk.why("positions under a kernel are ordered")
        for tree in (*x.axes[-space:], *w.axes[2:]):
            pin(tree, ordered)
    x_space = tuple(("position", i) for i in range(space))
    w_space = tuple(None if pointwise else ("kernel", i) for i in range(space))
    n = ("n",) if batched else ()
    if groups > 1:
        channels = x.shape[-space - 1]
        x = reshape(walk, x, (*x.shape[: -space - 1], groups, channels // groups, *x.shape[-space:]))
        w = reshape(walk, w, (groups, w.shape[0] // groups, *w.shape[1:]))
        b = None if b is None else reshape(walk, b, (groups, b.shape[0] // groups))
        g: tuple = ("g",)
    else:
        g = ()
    w_channels = ("c", "o") if transposed else ("o", "c")
    operands = [(x, (*n, *g, "c", *x_space)), (w, (*g, *w_channels, *w_space))]
    if b is not None:
        operands.append((b, (*g, "o")))
    operands = [
        (tensor, tuple(None if size == 1 else key for key, size in zip(keys, tensor.shape, strict=True)))
        for tensor, keys in operands
    ]
    known = {key for _, keys in operands for key in keys if key is not None}
    head = tuple(key if key in known else None for key in (*n, *g, "o"))
    if pointwise:
        out = walk.loop(operands, (*head, *(key if key in known else None for key in x_space)))
    else:
        # Output positions are a new ordered loop: the result is made with single positions and then given its own.
        out = walk.loop(operands, (*head, *(None,) * space))
        out.axes[-space:] = [pinned(size, ordered) for size in shape[-space:]]
    return reshape(walk, out, shape) if groups > 1 else out
