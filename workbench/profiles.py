"""Profiles: loss and metrics along a path, as a labelled Dataset over (split, t)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from workbench.errors import WorkbenchError
from workbench.evaluation import Evaluator
from workbench.paths import Path
from workbench.progress import Progress, Reporter
from workbench.schema import provenance
from workbench.tasks import Task, require_task

# Higher is better only for these; everything else is a loss or an error.
HIGHER_IS_BETTER = ("accuracy",)
UNITS = {"cross_entropy": "nats", "accuracy": "fraction"}


def profile_path(
    path: Path,
    model: nn.Module,
    task: Task,
    *,
    points: int | Sequence[float] = 25,
    calibration: str | None = None,
    splits: Iterable[str] | None = ("train", "test"),
    batch_size: int | None = None,
    device: str | torch.device = "auto",
    progress: Progress | None = None,
    stage: str = "profile",
) -> xr.Dataset:
    """loss(split, t) = L_split(path(t)) and every metric of the task, at ``points`` values of t.

    points: a count (both ends included, evenly spaced) or the values of t; splits: which splits of the task (None: all);
    calibration: None is the only choice so far: normalisation statistics are taken from the path as they are, so the interior
    of a path between BatchNorm networks is not to be trusted
    progress: called at every point with the values there ("t", "loss train", "accuracy test", …), so that a curve can fill in;
    stage: the name under which it reports

    Raises ``WorkbenchError`` where the model is not deterministic in eval mode or does not fit the path, and ``Cancelled`` where
    progress raises it. Attributes: units, definition, which way is better; provenance in the dataset's attributes.
    """
    if calibration is not None:
        raise WorkbenchError(
            f"calibration={calibration!r} is not known", expected="None: recalibration of normalisation statistics is not built yet"
        )
    require_task(task)
    grid = path_points(points)
    names = task.chosen(splits)
    evaluator = Evaluator(model, task, splits=names, batch_size=batch_size, device=device)
    metrics = ("loss", *task.metrics)
    values = {metric: np.full((len(names), len(grid)), np.nan) for metric in metrics}
    reporter = Reporter(progress, stage, total=len(grid))
    for column, t in enumerate(grid):
        found = evaluator(path(t))
        for row, split in enumerate(names):
            for metric in metrics:
                values[metric][row, column] = found[split, metric]
        reporter.step(t=t, **{f"{metric} {split}": found[split, metric] for split in names for metric in metrics})
    return _dataset(values, names, grid, task, path, evaluator.device)


def path_points(points: int | Sequence[float]) -> list[float]:
    """The values of t that ``points`` stands for. Raises ``WorkbenchError`` unless they are two or more, increasing and finite."""
    if isinstance(points, Integral):
        if points < 2:
            raise WorkbenchError(f"points={points}", expected="at least 2, both ends of the path")
        return [float(t) for t in np.linspace(0.0, 1.0, points)]
    try:
        grid = [float(t) for t in points]
    except (TypeError, ValueError) as error:
        raise WorkbenchError(f"points={points!r}", expected="a whole number from 2 on, or values of t") from error
    if not grid or not all(np.isfinite(grid)) or any(b <= a for a, b in pairwise(grid)):
        raise WorkbenchError(f"points={grid!r}", expected="increasing finite values of t")
    return grid


def _dataset(values: dict[str, Any], names: tuple[str, ...], grid: list[float], task: Task, path: Path, device: Any) -> xr.Dataset:
    dataset = xr.Dataset(
        coords={"split": list(names), "t": ("t", grid, {"units": "1", "definition": "place along the path, 0 to 1"})}
    )
    for metric, array in values.items():
        unit = UNITS.get(task.loss_name if metric == "loss" else metric, "1")
        dataset[metric] = (
            ("split", "t"),
            array,
            {
                "units": unit,
                "definition": f"mean {task.loss_name if metric == 'loss' else metric} over the split's examples",
                "better": "higher" if metric in HIGHER_IS_BETTER else "lower",
            },
        )
    sizes = {split: task.size(split) for split in names}
    dataset.attrs = provenance(
        settings={
            "points": len(grid),
            "splits": sizes,
            "path": type(path).__name__,
            "device": str(device),
            "task_notes": list(task.notes),
        },
        task=task.name,
        calibration="none",
        non_finite=int(sum((~np.isfinite(array)).sum() for array in values.values())),
    )
    return dataset
