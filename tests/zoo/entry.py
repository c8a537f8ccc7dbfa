"""One row of the zoo: how to build a small random model, what to call it with, and what is known about its group."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

PLAIN, TRANSFORMERS, TORCHVISION, TIMM = "torch", "transformers", "torchvision", "timm"
WORDS, WIDTH, LENGTH, BATCH = 19, 16, 5, 2  # vocabulary, residual stream, sequence, batch: no two axes of equal size


@dataclass(frozen=True)
class Entry:
    """``build()`` gives a model in eval mode and its example inputs.

    outputs: names of those that matter (a cache or a hidden state would pin the heads); floor: the least share of the parameters
    that a factor must move; unknown: operations known to have no rule; reason: a part of the
    exporter's message, where the model is known not to export; note: what was set away from the default, and why.
    """

    name: str
    library: str
    family: str
    build: Callable[[], tuple[nn.Module, Any]]
    outputs: Sequence[str] | None = None
    floor: float = 0.0
    unknown: Sequence[str] = ()
    reason: str = ""
    note: str = ""

    def make(self) -> tuple[nn.Module, Any]:
        """The same weights every time; the caller's random numbers are left as they were."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, inputs = self.build()
        return model.eval(), inputs


@dataclass
class Catalogue:
    """Entries of one library, added one by one."""

    library: str
    entries: list[Entry] = field(default_factory=list)

    def add(self, name: str, family: str, build: Callable[[], tuple[nn.Module, Any]], **facts: Any) -> None:
        self.entries.append(Entry(name, self.library, family, build, **facts))

    @property
    def importable(self) -> bool:
        return self.library == PLAIN or importlib.util.find_spec(self.library) is not None


def tokens(length: int = LENGTH, words: int = WORDS, batch: int = BATCH) -> Tensor:
    """Token ids, none of them a special one of small number."""
    return torch.randint(4, words, (batch, length))


def image(side: int, channels: int = 3, batch: int = BATCH) -> Tensor:
    return torch.randn(batch, channels, side, side)


def words(**more: Any) -> Mapping[str, Any]:
    return {"input_ids": tokens(), **more}
