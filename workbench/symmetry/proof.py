"""Proof by test: random elements of the group must leave the exported graph's output unchanged in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SymmetryCheck:
    """The verdict. max_relative_error: largest |y − y'| over the largest |activation|, over all samples and shapes."""

    max_relative_error: float
    per_group: Mapping[str, float]
    passed: bool

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SymmetryCheck:
        return cls(**data)
