"""Normalisations, written as what they are: a reduction, then an element-wise step with the affine parameters."""

from __future__ import annotations

from typing import Any

from workbench.symmetry.records import TensorType
from workbench.symmetry.rules import NoRule, rule
from workbench.symmetry.rules.reduction import axis_keys, reduce_axes
from workbench.symmetry.rules.views import reshape
from workbench.symmetry.trees import Uni


@rule("_native_batch_norm_legit_no_training")
def batch_norm(walk, args: Any, kwargs: Any) -> Any:
    """Eval mode: statistics are buffers, so the channel loop runs through input, weight, bias, mean and variance."""
    x, *per_channel = args[:5]
    keys = axis_keys(x)
    operands = [(x, keys), *((t, (keys[1],)) for t in per_channel if t is not None)]
    y = walk.loop(operands, keys)
    # The saved statistics are empty in eval mode on a CPU, and per channel on other devices.
    saved = [value.shape for value in walk.node.meta["val"][1:]]
    statistics = [walk.loop([(args[3], (keys[1],))], (keys[1],)) if any(s) else walk.loop_free([Uni(0)]) for s in saved]
    return y, *statistics


@rule("_native_batch_norm_legit")
def batch_norm_of_batch(walk, args: Any, kwargs: Any) -> Any:
    """Statistics of the batch itself (instance norm, standardised weights): over all axes but the channels."""
    x, weight, bias, *more = args
    training = next(argument for argument in more if isinstance(argument, bool))
    if not training:
        return batch_norm(walk, args[:5], kwargs)
    if any(isinstance(argument, TensorType) for argument in more):
        raise NoRule("running statistics are updated")
    keys = axis_keys(x)
    affine = [(t, (keys[1],)) for t in (weight, bias) if t is not None]
    y, statistics = _normalise(walk, x, [axis for axis in range(len(keys)) if axis != 1], affine)
    saved = reshape(walk, statistics, (x.shape[1],))
    return y, saved, saved


def _normalise(walk, x, dims, affine) -> tuple[Any, Any]:
    """(result, statistics): x with statistics over ``dims`` taken out, times and plus ``affine`` (tensor, keys) pairs."""
    keys = axis_keys(x)
    gone = {d % len(keys) for d in dims}
    statistics = reduce_axes(walk, x, dims, keepdim=True)
    reduced = tuple(None if axis in gone else key for axis, key in enumerate(keys))
    return walk.loop([(x, keys), (statistics, reduced), *affine], keys), statistics


@rule("native_layer_norm")
def layer_norm(walk, args: Any, kwargs: Any) -> Any:
    x, normalized, weight, bias = args[:4]
    rank, count = len(x.axes), len(normalized)
    last = axis_keys(x)[rank - count :]
    affine = [(t, last) for t in (weight, bias) if t is not None]
    y, statistics = _normalise(walk, x, range(rank - count, rank), affine)
    return y, statistics, statistics


@rule("_fused_rms_norm", "rms_norm")
def rms_norm(walk, args: Any, kwargs: Any) -> Any:
    x, normalized, weight = args[:3]
    rank, count = len(x.axes), len(normalized)
    affine = [] if weight is None else [(weight, axis_keys(x)[rank - count :])]
    y, statistics = _normalise(walk, x, range(rank - count, rank), affine)
    return (y, statistics) if walk.op.startswith("_fused") else y


@rule("native_group_norm")
def group_norm(walk, args: Any, kwargs: Any) -> Any:
    """View C as (groups, C/groups); statistics run over the inner channels and all positions."""
    x, weight, bias, n, channels, _, groups = args[:7]
    shape = x.shape
    split = reshape(walk, x, (n, groups, channels // groups, *shape[2:]))
    keys = axis_keys(split)
    affine = [(reshape(walk, t, (groups, channels // groups)), keys[1:3]) for t in (weight, bias) if t is not None]
    y, statistics = _normalise(walk, split, range(2, len(keys)), affine)
    statistics = reshape(walk, statistics, (n, groups))
    return reshape(walk, y, shape), statistics, statistics
