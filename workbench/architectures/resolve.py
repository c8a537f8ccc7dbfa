"""From one line of text to a model: ``mlp``, ``mlp:width=64,depth=3``, or ``package.module:factory`` for your own code."""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from workbench.architectures.base import ARCHITECTURES, Architecture
from workbench.errors import WorkbenchError, unknown_name
from workbench.options import parse_options


@dataclass(frozen=True)
class OutsideModel:
    """A model from somebody's own code: ``build()`` calls ``factory`` of the importable ``module`` without arguments."""

    module: str
    factory: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.factory}"

    def build(self, seed: int | None = None) -> nn.Module:
        """Call the factory with the global generator seeded (None means 0) and put back afterwards.

        The code is somebody else's and may draw from the global generator, so unlike the built-in architectures this must not
        run in two threads at once where initial weights matter.
        """
        factory = self._import()
        with torch.random.fork_rng():
            torch.manual_seed(0 if seed is None else seed)
            try:
                model = factory()
            except (Exception, SystemExit) as error:
                raise self._broken("called without arguments", error) from error
        if not isinstance(model, nn.Module):
            raise WorkbenchError(f"{self.name} gave a {type(model).__name__}", expected="a torch.nn.Module")
        return model

    def _broken(self, when: str, error: BaseException) -> WorkbenchError:
        """What went wrong inside the user's code, with the line of it."""
        if isinstance(error, WorkbenchError):
            return error
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in (__file__, importlib.__file__)]
        frames = [frame for frame in frames if not frame.filename.startswith("<")]
        where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        text = str(error).strip().split("\n")[0][:300]
        return WorkbenchError(
            f"{self.name} failed when {when}: {type(error).__name__}{f': {text}' if text else ''}{where}",
            expected="a function that takes no arguments and returns a torch.nn.Module",
            next_step=f"try it in Python: import {self.module}; {self.module}.{self.factory}()",
        )

    def describe(self) -> str:
        return f"{self.name}: {sum(p.numel() for p in self.build().parameters()):,} parameters"

    def __str__(self) -> str:
        return self.name

    def _import(self) -> object:
        try:
            module = _import_from_here(self.module)
        except ImportError as error:
            raise WorkbenchError(
                f"The module {self.module!r} cannot be imported ({error})",
                expected="package.module:factory with an importable module",
                cause="a misspelt name, or the folder it lies in is not on the path",
                next_step="run from the folder that holds the package, or install it",
            ) from error
        except (Exception, SystemExit) as error:
            raise self._broken("its module was imported", error) from error
        factory = getattr(module, self.factory, None)
        if factory is None:
            callables = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            raise unknown_name(f"factory in {self.module}", self.factory, callables)
        if not callable(factory) or isinstance(factory, nn.Module):
            raise WorkbenchError(
                f"{self.name} is a {type(factory).__name__}",
                expected="a function or class to call without arguments, which makes a new module each time",
            )
        return factory


def _import_from_here(name: str) -> object:
    """Import ``name``, looking in the working folder too: an installed command does not search it by itself."""
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    finally:
        if added:
            sys.path.remove(here)


def resolve_model(spec: str) -> Architecture | OutsideModel:
    """The model that ``spec`` names; both kinds have ``name``, ``build(seed)`` and ``describe()``.

    Raises ``WorkbenchError`` for an unknown name (with a did-you-mean), an option that does not exist, or a module or factory
    that cannot be found.
    """
    text = spec.strip()
    name, colon, rest = text.partition(":")
    if not colon and text.endswith(")"):
        name, colon, rest = text[:-1].partition("(")
    if name in ARCHITECTURES:
        return Architecture(name, parse_options(rest))
    if name and colon and "=" not in rest and rest.isidentifier():
        outside = OutsideModel(name, rest)
        outside._import()
        return outside
    error = unknown_name("architecture", name, ARCHITECTURES)
    raise WorkbenchError(
        error.found,
        expected=f"{error.expected}; or name:option=value,…; or package.module:factory for your own code",
        next_step=error.next_step,
    )
