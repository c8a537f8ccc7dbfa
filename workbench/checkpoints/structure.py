"""Which of the things in a file are the weights, and what their names are without wrappers.

Files hold a state dict at the top, or below "state_dict", "model", "ema", "netG" …. One candidate is taken; several are listed
with their sizes and the choice is the reader's. Then wrapper names are taken off, and what is not a set of weights (adapters,
packed integers) is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.errors import WorkbenchError

# Put in by torch.compile, FSDP, activation checkpointing and DeepSpeed, at any depth: never a name somebody chose.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
# Put in front of everything by DataParallel and by Lightning: taken off only where every name begins so.
ROOTS = ("module.", "model.")
ADAPTERS = ("lora_A", "lora_B", "lora_up", "lora_down", "lora_embedding_A", "hada_w1", "hada_w2", "lokr_w1", "lokr_w2")
PACKED = ("qweight", "qzeros", "quant_state", "absmax", "SCB", "weight_packed")
DEEPEST = 4


def candidates(content: Any, path: str = "", depth: int = 0) -> dict[str, Mapping[str, Any]]:
    """Path (joined by ``/``, empty for the top) -> mapping that looks like a state dict: it holds a float tensor with an axis."""
    if not isinstance(content, Mapping) or depth > DEEPEST:
        return {}
    found: dict[str, Mapping[str, Any]] = {}
    tensors = {key: value for key, value in content.items() if isinstance(value, Tensor)}
    weights = any((v.is_floating_point() or v.is_quantized) and v.dim() > 0 for v in tensors.values())
    if weights and all(isinstance(key, str) for key in tensors):
        found[path] = content
    for key, value in content.items():
        if isinstance(key, str):
            found.update(candidates(value, f"{path}/{key}" if path else key, depth + 1))
    return found


def choose(content: Any, key: str | None, where: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The one candidate, or the one called ``key``; and a note where it was not at the top. Raises where there is a choice."""
    found = candidates(content)
    listing = "; ".join(f"{path or '(top)'}: {_size(state)}" for path, state in found.items())
    if not found:
        kind = f"a mapping with {_names(content)}" if isinstance(content, Mapping) else f"a {type(content).__name__}"
        raise WorkbenchError(
            f"{where} holds no weights: it is {kind}",
            expected="a state dict: names -> float tensors",
            next_step="save model.state_dict() instead",
        )
    if key is not None:
        wanted = key.strip("/").replace(".", "/") if key.strip("/") not in found else key.strip("/")
        if wanted not in found:
            raise WorkbenchError(f"{where} holds no weights under {key!r}", expected=f"one of {listing}")
        path = wanted
    elif len(found) > 1:
        raise WorkbenchError(
            f"{where} holds {len(found)} sets of weights ({listing})",
            expected="a choice between them",
            cause="training saved several networks, or an average beside the last weights",
            next_step=f"pass key={next(iter(found))!r} (--key on the command line), or another of them",
        )
    else:
        path = next(iter(found))
    return found[path], (f"read from {path!r}",) if path else ()


def _size(state: Mapping[str, Any]) -> str:
    tensors = [value for value in state.values() if isinstance(value, Tensor)]
    return f"{len(tensors)} tensors with {sum(tensor.numel() for tensor in tensors):,} values"


def _names(content: Iterable[Any]) -> str:
    names = [str(name) for name in content]
    return (", ".join(names[:5]) + (" …" if len(names) > 5 else "")) or "no entries"


def plain_tensors(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors of ``state``, detached (tied ones stay tied), and a note that lists what was left out."""
    tensors, once = {}, {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            tensors[name] = once.setdefault(id(value), value.detach())
    others = [name for name, value in state.items() if not isinstance(value, Tensor)]
    return tensors, (f"left out, not tensors: {_names(others)}",) if others else ()


def unwrap(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The same tensors under names without wrappers, and a note for each kind taken off."""
    names = {name: name for name in state}
    notes = []
    for wrapper in WRAPPERS:
        if any(wrapper in name.split(".") for name in names.values()):
            names = {old: ".".join(part for part in new.split(".") if part != wrapper) for old, new in names.items()}
            notes.append(f"{wrapper!r} taken out of the names")
    changed = True
    while changed and names:
        changed = False
        for root in ROOTS:
            if all(name.startswith(root) and len(name) > len(root) for name in names.values()):
                names = {old: new[len(root) :] for old, new in names.items()}
                notes.append(f"{root!r} taken off all {len(names)} names")
                changed = True
    if len(set(names.values())) < len(names):  # two names became one: both are kept as they were
        return dict(state), ("wrapper names kept, since without them two tensors would share a name",)
    return {names[old]: tensor for old, tensor in state.items()}, tuple(notes)


def require_weights(state: Mapping[str, Tensor], where: str) -> None:
    """Raise for adapters, quantised or packed weights, and tensors that are not stored densely."""
    adapter = [name for name in state if any(part in name.split(".") for part in ADAPTERS)]
    if adapter:
        raise WorkbenchError(
            f"{where} holds an adapter (LoRA or its kin), {len(adapter)} of its {len(state)} tensors, such as {adapter[0]!r}",
            expected="the weights of a whole model",
            cause="the file has low-rank changes that mean nothing without their base model",
            next_step="merge the adapter into its base model and save that",
        )
    packed = [
        name
        for name, tensor in state.items()
        if tensor.is_quantized
        or any(part in name.split(".") for part in PACKED)
        or (name.split(".")[-1] == "weight" and not tensor.is_floating_point() and tensor.dim() > 0)
        or str(tensor.dtype).startswith("torch.float8")
    ]
    if packed:
        first = state[packed[0]]
        raise WorkbenchError(
            f"{where} holds quantised weights: {len(packed)} of its {len(state)} tensors, such as {packed[0]!r} ({first.dtype})",
            expected="float16, bfloat16, float32 or float64 weights",
            cause="the model was compressed; its numbers are codes, and an average of codes means nothing",
            next_step="use the weights from before quantisation, or dequantise and save them",
        )
    hollow = [name for name, tensor in state.items() if tensor.is_meta]
    if hollow:
        raise WorkbenchError(
            f"{where} holds names and shapes without values: {len(hollow)} of its {len(state)} tensors, such as {hollow[0]!r}",
            expected="weights",
            cause="the model was on the meta device when it was saved",
            next_step="load the weights into the model before saving it",
        )
    odd = [name for name, tensor in state.items() if tensor.layout != torch.strided or tensor.is_complex()]
    if odd:
        raise WorkbenchError(f"{where} holds sparse or complex tensors, such as {odd[0]!r}", expected="dense real tensors")
