"""What every page's state has in common: whether work is under way, what it says, and how it ended."""

from __future__ import annotations

import param

from workbench.errors import WorkbenchError

from .jobs import Jobs
from .settings import Settings


class Working(param.Parameterized):
    """A state whose long work runs in ``jobs``; ``settings`` says what may be chosen."""

    status = param.Selector(default="idle", objects=["idle", "running", "done", "stopped", "failed"])
    message = param.String(doc="What is happening, or how it ended, in one sentence.")
    error = param.String(doc="The text of the last error; empty where there was none.")
    fraction = param.Number(default=None, allow_None=True, doc="Share of the current stage done, None where unknown.")

    def __init__(self, jobs: Jobs, settings: Settings, **params: object) -> None:
        super().__init__(**params)
        self._jobs, self._settings = jobs, settings

    def _text(self, error: Exception) -> str:
        """Our own errors speak for themselves; any other is named. Where the operator's files lie is not the visitor's business."""
        text = str(error)
        if not isinstance(error, WorkbenchError):
            text = f"Something went wrong that should not have ({type(error).__name__}: {text}). Please report it."
        for folder in (self._settings.checkpoints, self._settings.data):
            text = text if folder is None else text.replace(f"{folder}/", "")
        return text
