"""Tasks: named splits of data with a loss and metrics, and no model.

``task("digits")`` is embedded; ``task("mnist" | "fashion-mnist" | "cifar10", root=PATH)`` read their publishers' files; and
``Task("mine", splits={"train": (x, y), "test": (x, y)})`` takes your own tensors. A new task is one file in this folder that
registers a function under ``@TASKS.register("name")``.
"""

from __future__ import annotations

from typing import Any

from workbench.options import call_factory
from workbench.tasks.base import TASKS, Task, require_task
from workbench.tasks.objectives import LOSSES, METRICS

__all__ = ["LOSSES", "METRICS", "TASKS", "Task", "require_task", "task"]


def task(name: str, **options: Any) -> Task:
    """The registered task ``name``; ``options`` go to its loader (``root=PATH`` for data read from files).

    Raises ``WorkbenchError`` for unknown names and options, and where files are missing or damaged.
    """
    loader = TASKS[name]
    return call_factory("task", name, loader, options)
