"""Registries: one decorator makes a thing listed, selectable, documented and swept by the law tests.

A registry finds its entries by importing every module of one package (``pkgutil``) and then the entry points of one group, so
that a new matcher, task, rule or plot is one file, here or in somebody else's distribution.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from workbench.errors import WorkbenchError, unknown_name

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered thing: its name, itself, where it was published, and the first line of its docstring."""

    name: str
    value: T
    reference: str = ""

    @property
    def summary(self) -> str:
        return (getattr(self.value, "__doc__", None) or "").strip().split("\n")[0]


class Registry(Generic[T]):
    """Name -> thing of one ``kind``.

    kind: the word used in messages; package: the package whose modules register on import; group: the entry-point group of
    outside packages (each entry point names a module to import).
    """

    def __init__(self, kind: str, *, package: str, group: str | None = None) -> None:
        self.kind, self._package, self._group = kind, package, group
        self._entries: dict[str, Entry[T]] = {}
        self._loaded = False
        self._lock = threading.RLock()

    def register(self, name: str, *, reference: str = "") -> Callable[[T], T]:
        """Decorator. A second registration of one name is an error."""

        def decorate(value: T) -> T:
            if name in self._entries:
                raise WorkbenchError(
                    f"The {self.kind} {name!r} is registered twice, by {self._entries[name].value!r} and {value!r}",
                    next_step="rename one of them",
                )
            self._entries[name] = Entry(name, value, reference)
            return value

        return decorate

    def _load(self) -> None:
        with self._lock:
            if self._loaded:
                return
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
            if self._group:
                for point in entry_points(group=self._group):
                    point.load()
            self._loaded = True

    def __getitem__(self, name: str) -> T:
        return self.entry(name).value

    def entry(self, name: str) -> Entry[T]:
        """The entry called ``name``; raises ``WorkbenchError`` with a did-you-mean."""
        self._load()
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries))

    def entries(self) -> list[Entry[Any]]:
        """All entries, sorted by name."""
        return [self._entries[name] for name in self]
