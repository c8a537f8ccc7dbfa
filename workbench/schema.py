"""What travels with every result: versions, seed, settings; and how labelled results are written to disk.

Numbers on a grid are ``xarray.Dataset``s whose variables carry ``units`` and ``definition``. Provenance sits in the dataset's
attributes as plain strings and numbers, so that netCDF keeps it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import xarray as xr

from workbench.disk import output_file, whole_file


@cache
def versions() -> dict[str, str]:
    """Versions of what computes: workbench, python, torch, numpy, scipy."""
    found = {"python": platform.python_version()}
    for name in ("workbench", "torch", "numpy", "scipy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def provenance(*, seed: int | None = None, settings: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Attributes for a dataset: ``versions`` and ``settings`` as JSON text, ``seed`` where there is one, and ``more`` as given."""
    attributes: dict[str, Any] = {"versions": json.dumps(versions(), sort_keys=True)}
    if seed is not None:
        attributes["seed"] = int(seed)
    if settings is not None:
        attributes["settings"] = json.dumps(dict(settings), sort_keys=True, default=str)
    attributes.update(more)
    return attributes


def write_netcdf(dataset: xr.Dataset, path: str | os.PathLike[str]) -> Path:
    """Write ``dataset`` to ``path`` in one piece: a reader sees the old file or the whole new one, never half of it."""
    target = output_file(path)
    with whole_file(target) as partial:
        dataset.to_netcdf(partial.absolute(), engine="h5netcdf")  # else it would read a leading ~ in its own way
    return target
