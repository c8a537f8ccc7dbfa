"""Barriers: one number per split and metric from a profile, by a named definition. Arithmetic on labelled arrays.

With y(t) the metric along the path, y0 = y(0) and y1 = y(1) (for a metric where higher is better, −y is used throughout, so a
barrier is always "how much worse"):

    linear    max_t [ y(t) − ((1−t) y0 + t y1) ]     ≥ 0, since the ends count   (Entezari et al., arXiv 2110.06296)
    mean      max_t y(t) − ½ (y0 + y1)               (Frankle et al.; Git Re-Basin, arXiv 2209.04836, definition 2.2)
    max       max_t y(t) − max(y0, y1)               0 where the path never exceeds its worse end
    midpoint  y(½) − ½ (y0 + y1)                     may be negative
    area      ∫ [ y(t) − ((1−t) y0 + t y1) ] dt      trapezium rule, may be negative
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from workbench.errors import WorkbenchError, unknown_name

Definition = Callable[[xr.DataArray, xr.DataArray, xr.DataArray], xr.DataArray]


def _straight(start: xr.DataArray, end: xr.DataArray, t: xr.DataArray) -> xr.DataArray:
    return start + t * (end - start)  # equal ends give exactly that value, and a flat curve a barrier of exactly 0


def _linear(y: xr.DataArray, start: xr.DataArray, end: xr.DataArray) -> xr.DataArray:
    return (y - _straight(start, end, y["t"])).max("t", skipna=False)


def _mean(y: xr.DataArray, start: xr.DataArray, end: xr.DataArray) -> xr.DataArray:
    return y.max("t", skipna=False) - (start + end) / 2


def _max(y: xr.DataArray, start: xr.DataArray, end: xr.DataArray) -> xr.DataArray:
    return y.max("t", skipna=False) - np.maximum(start, end)


def _midpoint(y: xr.DataArray, start: xr.DataArray, end: xr.DataArray) -> xr.DataArray:
    places = np.flatnonzero(np.isclose(y["t"].values, 0.5, rtol=0, atol=1e-9))
    if not len(places):
        raise WorkbenchError(
            f"The profile has no point at t = 0.5 ({y.sizes['t']} points)",
            expected="a profile that holds the midpoint",
            next_step="use an odd number of points, or points=[0, 0.5, 1]",
        )
    return y.isel(t=int(places[0]), drop=True) - (start + end) / 2


def _area(y: xr.DataArray, start: xr.DataArray, end: xr.DataArray) -> xr.DataArray:
    return (y - _straight(start, end, y["t"])).integrate("t")


DEFINITIONS: dict[str, tuple[Definition, str]] = {
    "linear": (_linear, "max_t [y(t) − ((1−t) y(0) + t y(1))]"),
    "mean": (_mean, "max_t y(t) − ½ (y(0) + y(1))"),
    "max": (_max, "max_t y(t) − max(y(0), y(1))"),
    "midpoint": (_midpoint, "y(½) − ½ (y(0) + y(1))"),
    "area": (_area, "∫ [y(t) − ((1−t) y(0) + t y(1))] dt, trapezium rule"),
}


def barrier(profile: xr.Dataset, metric: str = "loss", definition: str = "linear") -> xr.DataArray:
    """The barrier of ``metric`` along ``t`` by ``definition`` (formulas in the module docstring); all other dimensions are kept.

    profile: a Dataset with a coordinate ``t`` that holds 0 and 1; a variable's attribute ``better`` ("lower" or "higher") says
    which way is worse. A curve with a NaN or infinite value has no barrier: the result is NaN there, and the attribute
    ``non_finite`` counts such values. Attributes name the definition, the metric, the number of points and the calibration.
    """
    if metric not in profile.data_vars:
        raise unknown_name("metric of this profile", metric, [str(name) for name in profile.data_vars])
    if definition not in DEFINITIONS:
        raise unknown_name("barrier definition", definition, DEFINITIONS)
    values = profile[metric]
    if "t" not in values.dims:
        raise WorkbenchError(
            f"{metric!r} has no dimension 't' (it has {', '.join(map(str, values.dims))})", expected="a profile along a path"
        )
    values = values.sortby("t").astype("float64")
    t = values["t"].values
    if not (np.isclose(t[0], 0, rtol=0, atol=1e-9) and np.isclose(t[-1], 1, rtol=0, atol=1e-9)):
        raise WorkbenchError(
            f"The profile runs from t = {t[0]:g} to {t[-1]:g}",
            expected="both ends, t = 0 and t = 1, since a barrier is measured against them",
            next_step="add 0 and 1 to points=...",
        )
    higher = values.attrs.get("better", "lower") == "higher"
    finite = xr.apply_ufunc(np.isfinite, values)
    y = (-values if higher else values).where(finite)
    compute, formula = DEFINITIONS[definition]
    result = compute(y, y.isel(t=0, drop=True), y.isel(t=-1, drop=True)).where(finite.all("t"))
    result.name = f"{metric}_barrier"
    result.attrs = {
        "units": values.attrs.get("units", ""),
        "definition": f"{definition}: {formula}" + (", with y = −" + metric if higher else f", with y = {metric}"),
        "metric": metric,
        "points": int(values.sizes["t"]),
        "calibration": profile.attrs.get("calibration", "none"),
        "non_finite": int((~finite).sum()),
    }
    return result
