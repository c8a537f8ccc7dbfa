"""State dicts: what a set of weights is, and the questions one asks of it before any work.

A ``StateDict`` maps names to tensors: parameters and buffers, as ``module.state_dict()`` gives them. It is never changed in
place; whatever transforms one returns a new dict whose tensors share no memory with the old.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from workbench.errors import WorkbenchError

StateDict = Mapping[str, Tensor]


def clone(state: StateDict) -> dict[str, Tensor]:
    """A copy that shares no memory with ``state`` (tied names stay tied among themselves)."""
    copies: dict[tuple, Tensor] = {}
    out = {}
    for name, tensor in state.items():
        key = storage_key(tensor)
        if key not in copies:
            copies[key] = tensor.detach().clone()
        out[name] = copies[key]
    return out


def storage_key(tensor: Tensor) -> tuple:
    """Two tensors with equal keys are one piece of memory seen the same way (tied parameters).

    The storage object is used, not its address: on the meta device every address is 0.
    """
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))


def require_state(state: object, which: str) -> None:
    """Raise unless ``state`` maps names to tensors: a module, a checkpoint or a path in its place is named."""
    items = state.items() if isinstance(state, Mapping) else ()
    held = [f"a {type(value).__name__} under {name!r}" for name, value in items if not isinstance(value, Tensor)]
    if isinstance(state, Mapping) and not held:
        return
    advice = ""
    if held:
        advice = "leave it out, or make a tensor of it (torch.from_numpy for an array)"
    elif isinstance(state, torch.nn.Module):
        advice = "pass its state_dict()"
    elif isinstance(getattr(state, "state", None), Mapping):
        advice = "pass its .state"
    elif isinstance(state, str | os.PathLike):
        advice = "read the file with load_checkpoint and pass its .state"
    raise WorkbenchError(
        f"The {which} model is a {type(state).__name__}{f' that holds {held[0]}' if held else ''}",
        expected="a state dict, a tensor under every name",
        next_step=advice,
    )


def require_finite(state: StateDict, which: str) -> None:
    """Raise unless every float tensor is finite; the message names each bad tensor with its count of NaN and infinite entries."""
    bad = []
    for name, tensor in state.items():
        if tensor.is_floating_point():
            count = int((~torch.isfinite(tensor)).sum())
            if count:
                bad.append(f"{name}: {count} of {tensor.numel()}")
    if bad:
        raise WorkbenchError(
            f"The {which} model has non-finite values ({'; '.join(bad[:5])}{'; …' if len(bad) > 5 else ''})",
            expected="finite weights, since one NaN spreads through every assignment",
            cause="training diverged, or the file is damaged",
            next_step="load an earlier checkpoint, or retrain with a smaller learning rate",
        )


def require_same_tensors(first: StateDict, second: StateDict, *, names: tuple[str, str] = ("first", "second")) -> None:
    """Raise unless both hold the same names with the same shapes; the message lists what differs (a few of each kind)."""
    for state, name in zip((first, second), names, strict=True):
        require_state(state, name)
    only_first = [k for k in first if k not in second]
    only_second = [k for k in second if k not in first]
    shapes = [
        f"{k} {tuple(first[k].shape)} vs {tuple(second[k].shape)}"
        for k in first
        if k in second and first[k].shape != second[k].shape
    ]
    if only_first or only_second or shapes:
        parts = []
        for label, items in (
            (f"only in the {names[0]}", only_first),
            (f"only in the {names[1]}", only_second),
            ("shapes differ", shapes),
        ):
            if items:
                parts.append(f"{label}: {', '.join(items[:4])}{f' and {len(items) - 4} more' if len(items) > 4 else ''}")
        raise WorkbenchError(
            f"The two models do not hold the same tensors ({'; '.join(parts)})",
            expected="two checkpoints of one architecture",
            cause="the checkpoints come from different architectures or widths, or one is wrapped under another name",
            next_step="check the two files, or pass key=... to load_checkpoint",
        )


def squared_distance(first: StateDict, second: StateDict, names: Iterable[str] | None = None) -> float:
    """Σ_k ‖first_k − second_k‖² over the float tensors in ``names`` (default: all that both hold), accumulated in float64."""
    total = 0.0
    for name in first if names is None else names:
        if name in second and first[name].is_floating_point():
            total += float((first[name].double() - second[name].double()).square().sum())
    return total


def distance(first: StateDict, second: StateDict, names: Iterable[str] | None = None) -> float:
    """Euclidean distance between two state dicts, see ``squared_distance``."""
    return math.sqrt(squared_distance(first, second, names))


def mix(states: Sequence[StateDict], weights: Sequence[float]) -> dict[str, Tensor]:
    """Σ_i weights_i · states_i per float tensor, in the states' dtype (half precision is summed in float32, then rounded once).

    An entry in which all states agree is returned unchanged, whatever the rounding of the weights. Ties are kept.
    """
    largest = max(range(len(weights)), key=lambda i: weights[i])
    if weights[largest] == 1 and not any(w for i, w in enumerate(weights) if i != largest):
        return clone(states[largest])
    done: dict[tuple, Tensor] = {}
    out: dict[str, Tensor] = {}
    for name in states[0]:
        tensors = [state[name].detach() for state in states]
        key = tuple(storage_key(tensor) for tensor in tensors)
        if key not in done:
            done[key] = _mix_tensors(tensors, weights) if _mixes(tensors[0]) else tensors[largest].clone()
        out[name] = done[key]
    return out


def _mixes(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _mix_tensors(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    work = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = tensors[0].to(work) * weights[0]
    agree = torch.ones_like(tensors[0], dtype=torch.bool)
    for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
        total = total + tensor.to(work) * weight
        agree = agree & (tensor == tensors[0])
    return torch.where(agree, tensors[0].to(dtype), total.to(dtype))


def fingerprint(state: StateDict) -> str:
    """sha256 over names, dtypes, shapes and bytes, in name order: equal exactly when the two states are bit-equal."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
