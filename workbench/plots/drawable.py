"""What can be drawn: gaps for NaN and infinity, a floor for zeros on a log axis, and a sentence that says so.

A browser cannot place NaN, infinity, or the logarithm of zero; left alone they blank an axis or break the page. They are
replaced here, once, and counted: whoever draws the values puts the note where the reader sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Drawable:
    """values: what is drawn (NaN is a gap); non_finite: how many became gaps; floored: how many were lifted to ``floor``."""

    values: np.ndarray
    non_finite: int
    floored: int = 0
    floor: float | None = None


def drawable(values: Sequence[float] | np.ndarray, *, log: bool = False, floor: float | None = None) -> Drawable:
    """NaN and ±infinity become gaps; on a log axis values ≤ 0 are lifted to ``floor``.

    floor: by default a tenth of the smallest positive value, or 1e-12 where there is none.
    """
    numbers = np.array(values, dtype=float)
    bad = ~np.isfinite(numbers)
    numbers[bad] = np.nan
    if not log:
        return Drawable(numbers, int(bad.sum()))
    positive = numbers[numbers > 0]
    if floor is None:
        floor = float(positive.min()) / 10 if positive.size else 1e-12
    low = numbers <= 0
    numbers[low] = floor
    return Drawable(numbers, int(bad.sum()), int(low.sum()), floor)


def note(pieces: Sequence[Drawable]) -> str:
    """One sentence about what is not drawn where its value lies; empty where there is nothing to say."""
    missing = sum(piece.non_finite for piece in pieces)
    lifted = sum(piece.floored for piece in pieces)
    said = []
    if missing:
        said.append(f"{missing} non-finite point{'s' * (missing != 1)} left as a gap")
    if lifted:
        said.append(f"{lifted} value{'s' * (lifted != 1)} ≤ 0 drawn at the floor of the log axis")
    return "; ".join(said)
