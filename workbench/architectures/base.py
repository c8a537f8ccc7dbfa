"""``Architecture``: a registered name with its options, which builds the module and survives a trip through JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from workbench.architectures.initial import initialise
from workbench.errors import WorkbenchError
from workbench.options import complete_options
from workbench.registry import Registry

ARCHITECTURES: Registry[Callable[..., nn.Module]] = Registry(
    "architecture", package="workbench.architectures", group="workbench.architectures"
)


@dataclass(frozen=True)
class Architecture:
    """name: a key of ``ARCHITECTURES``; options: every option of its factory (defaults are filled in, so a later default
    cannot change what an old checkpoint means)."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = complete_options("architecture", self.name, ARCHITECTURES[self.name], self.options)
        frozen = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        object.__setattr__(self, "options", MappingProxyType(frozen))

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self) -> tuple:
        return (Architecture, (self.name, dict(self.options)))

    def build(self, seed: int | None = None) -> nn.Module:
        """A new module on the CPU, in train mode, with initial weights from ``seed`` (None means 0).

        Safe in threads: weights come from a generator of their own, and the global one is left as it was.
        """
        model = self._on_meta().to_empty(device="cpu")
        initialise(model, 0 if seed is None else seed)
        return model

    def example_inputs(self, count: int = 2, seed: int = 0) -> tuple[Tensor]:
        """A random batch of ``count`` examples in [0, 1] of the size the options name: ``inputs`` numbers, or ``channels`` images
        of ``size`` (32 where they leave that open) pixels. Raises ``WorkbenchError`` where the options name neither."""
        options, generator = self.options, torch.Generator().manual_seed(seed)
        if "inputs" in options:
            return (torch.rand(count, options["inputs"], generator=generator),)
        if "channels" in options:
            side = options.get("size", 32)
            return (torch.rand(count, options["channels"], side, side, generator=generator),)
        raise WorkbenchError(
            f"Nothing says what {self} takes as input",
            expected="the shape of one example batch, or a task",
            next_step="pass --input 2x3x32x32, or --task NAME",
        )

    def parameters(self) -> int:
        """Number of parameters, without building them."""
        return sum(p.numel() for p in self._on_meta().parameters())

    def _on_meta(self) -> nn.Module:
        # On the meta device the constructors of torch.nn draw nothing, so the global generator is not touched.
        try:
            with torch.device("meta"):
                model = ARCHITECTURES[self.name](**self.options)
        except WorkbenchError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:
            raise WorkbenchError(
                f"{self} cannot be built ({type(error).__name__}: {error})", cause="an option of the wrong type or size"
            ) from error
        empty = [name for name, parameter in model.named_parameters() if parameter.numel() == 0]
        if empty:
            raise WorkbenchError(f"{self} has tensors without any entry: {', '.join(empty[:5])}", expected="sizes from 1 on")
        return model

    def describe(self) -> str:
        """One line: name, options, number of parameters."""
        return f"{self}: {self.parameters():,} parameters"

    def __str__(self) -> str:
        given = ", ".join(f"{key}={value}" for key, value in self.options.items() if value is not None)
        return f"{self.name}({given})"

    def to_json(self) -> str:
        """Text that ``from_json`` reads back into an equal architecture."""
        return json.dumps({"name": self.name, "options": dict(self.options)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Architecture:
        """Read what ``to_json`` wrote. Raises ``WorkbenchError`` for anything else."""
        try:
            content = json.loads(text)
            name, options = content["name"], dict(content["options"])
        except (ValueError, KeyError, TypeError) as error:
            raise WorkbenchError(
                f"The text {text[:80]!r} is not an architecture", expected='{"name": ..., "options": {...}}'
            ) from error
        return Architecture(name, options)


def architecture(name: str, **options: Any) -> Architecture:
    """The built-in architecture ``name`` with ``options``; unknown names and options raise with a did-you-mean."""
    return Architecture(name, options)
