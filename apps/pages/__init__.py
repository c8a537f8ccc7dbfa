"""One file per instrument. A page registers a function ``Session -> Parts``; the shell lists it and builds it when first shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.registry import Registry

from ..jobs import Jobs
from ..settings import Settings


@dataclass(frozen=True)
class Session:
    """What a page may use: the session's jobs, the operator's settings, and the page's address (None outside a server)."""

    jobs: Jobs
    settings: Settings
    location: Any = None


@dataclass(frozen=True)
class Parts:
    """What a page hands to the shell: controls for the side bar and the content beside it."""

    sidebar: list[Any] = field(default_factory=list)
    main: list[Any] = field(default_factory=list)


PAGES: Registry[Callable[[Session], Parts]] = Registry("page", package=__name__, group="workbench.pages")
page = PAGES.register
