"""Curves that fill in while they are measured: the points of progress reports, put where they belong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from workbench.progress import Step


class LiveProfile:
    """A profile of several alignments over one grid of t, known point by point.

    ``dataset()`` has ``metric(alignment, split, t)`` and ``measured(alignment, t)``; NaN stands where nothing was measured yet.
    """

    def __init__(self, alignments: Sequence[str], splits: Sequence[str], metrics: Sequence[str], t: Sequence[float]) -> None:
        self._coordinates = {"alignment": list(alignments), "split": list(splits), "t": np.asarray(t, dtype=float)}
        shape = (len(alignments), len(splits), len(t))
        self._values = {metric: np.full(shape, np.nan) for metric in metrics}
        self._measured = np.zeros((shape[0], shape[2]), dtype=bool)
        self._attrs: dict[str, dict[str, object]] = {metric: {} for metric in metrics}

    def add(self, alignment: str, step: Step) -> None:
        """Take the figures of one progress report: ``values`` with "t" and, per metric and split, "loss train" and so on."""
        if "t" not in step.values:
            return
        row = self._coordinates["alignment"].index(alignment)
        column = int(np.abs(self._coordinates["t"] - step.values["t"]).argmin())
        for metric, array in self._values.items():
            for number, split in enumerate(self._coordinates["split"]):
                array[row, number, column] = step.values.get(f"{metric} {split}", np.nan)
        self._measured[row, column] = True

    def finish(self, alignment: str, profile: xr.Dataset) -> None:
        """Replace what was reported by the finished profile of this alignment."""
        row = self._coordinates["alignment"].index(alignment)
        for metric, array in self._values.items():
            array[row] = profile[metric].transpose("split", "t").to_numpy()
            self._attrs[metric] = dict(profile[metric].attrs)
        self._measured[row] = True

    def forget(self, alignment: str) -> None:
        """Back to unmeasured."""
        row = self._coordinates["alignment"].index(alignment)
        for array in self._values.values():
            array[row] = np.nan
        self._measured[row] = False

    def count(self, alignment: str) -> int:
        """How many points of this alignment are known."""
        return int(self._measured[self._coordinates["alignment"].index(alignment)].sum())

    def dataset(self) -> xr.Dataset:
        """A snapshot; later points do not change it."""
        dims = ("alignment", "split", "t")
        variables = {m: (dims, array.copy(), self._attrs[m]) for m, array in self._values.items()}
        variables["measured"] = (("alignment", "t"), self._measured.copy(), {})
        return xr.Dataset(variables, coords=self._coordinates)
