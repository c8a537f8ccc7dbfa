"""Writing weights as ``.safetensors``: whole or not at all, and readable elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from workbench.disk import output_file, whole_file
from workbench.states import require_state, storage_key


def save_checkpoint(
    state: Mapping[str, Tensor], path: str | os.PathLike[str], *, metadata: Mapping[str, Any] | None = None
) -> Path:
    """Write ``state`` to ``path`` as safetensors and return the path.

    metadata: values that are not strings are written as JSON. Tensors are written contiguous; tied ones once, with the others'
    names in the metadata under "ties", from which ``load_checkpoint`` ties them again. A reader sees the old file or the whole
    new one, never half of it. Equal states and metadata give equal bytes.
    """
    target = output_file(path)
    require_state(state, "saved")
    first: dict[tuple, str] = {}
    ties: dict[str, str] = {}
    tensors = {}
    for name, tensor in state.items():
        kept = first.setdefault(storage_key(tensor), name) if tensor.numel() else name
        if kept != name:
            ties[name] = kept
        else:
            tensors[name] = tensor.detach().cpu().contiguous().clone()
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in (metadata or {}).items()}
    if ties:
        texts["ties"] = json.dumps(ties, sort_keys=True)
    with whole_file(target) as partial:
        partial.touch()
        mode = partial.stat().st_mode  # what the umask gives; safetensors itself leaves a file only its owner may read
        save_file(tensors, partial, metadata={"format": "pt", **dict(sorted(texts.items()))})
        partial.chmod(mode)
        _sort_header(partial)
    return target


def _sort_header(path: Path) -> None:
    """Put the JSON header in name order: safetensors writes the metadata in an order that changes from run to run."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        ordered = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        if len(ordered) <= length:  # the same text in another order; the format pads with spaces
            file.seek(8)
            file.write(ordered.ljust(length))
