"""``Checkpoint``: a state dict, where it came from, and what was done to read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import Tensor

from workbench.architectures import Architecture
from workbench.states import fingerprint


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """state: name -> tensor; source: the file, or how it was made; notes: what was changed or left out while reading, in words.

    metadata: strings that the file carries. Training writes ``architecture`` (JSON), ``task``, ``seed``, ``recipe`` (JSON), and
    losses and accuracies.
    """

    state: Mapping[str, Tensor]
    source: str = ""
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", MappingProxyType(dict(self.state)))
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))

    @property
    def architecture(self) -> Architecture | None:
        """What ``.build()`` makes the matching module with, where the metadata say so."""
        text = self.metadata.get("architecture")
        return None if text is None else Architecture.from_json(text)

    @property
    def recipe(self) -> dict[str, Any] | None:
        """The training recipe, where the metadata hold one."""
        text = self.metadata.get("recipe")
        return None if text is None else json.loads(text)

    @property
    def parameters(self) -> int:
        """Number of floating-point values in the state dict (buffers included)."""
        return sum(tensor.numel() for tensor in self.state.values() if tensor.is_floating_point())

    @property
    def fingerprint(self) -> str:
        """sha256 of the state: equal exactly for bit-equal states."""
        return fingerprint(self.state)
