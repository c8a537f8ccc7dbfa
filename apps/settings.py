"""What the operator decided when the server was started. A visitor can choose among these things and name nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """checkpoints: the only folder (besides the shipped models) whose files are offered; data: where downloaded data sets lie;
    model: a model spec for checkpoints that do not say which architecture they belong to."""

    checkpoints: Path | None = None
    data: Path | None = None
    model: str | None = None
