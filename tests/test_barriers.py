"""Barriers: closed forms for each definition, sign of metrics where higher is better, undefined curves."""

import numpy as np
import pytest
import xarray as xr

from workbench.barriers import DEFINITIONS, barrier
from workbench.errors import WorkbenchError


def profile(values, t=None, *, metric="loss", better="lower"):
    values = np.atleast_2d(np.asarray(values, dtype=float))
    t = np.linspace(0, 1, values.shape[1]) if t is None else t
    splits = ["train", "test"][: len(values)]
    return xr.Dataset({metric: (("split", "t"), values, {"units": "nats", "better": better})}, coords={"split": splits, "t": t})


def number(values, definition, **options):
    return float(barrier(profile(values, **options), options.get("metric", "loss"), definition).isel(split=0))


def test_closed_forms_on_a_tent():
    """Ends 1 and 0, a peak of 2 at ½."""
    tent = [1.0, 1.5, 2.0, 1.0, 0.0]
    assert number(tent, "linear") == pytest.approx(1.5)
    assert number(tent, "mean") == pytest.approx(1.5)
    assert number(tent, "max") == pytest.approx(1.0)
    assert number(tent, "midpoint") == pytest.approx(1.5)
    assert number(tent, "area") == pytest.approx(0.25 * (0.75 + 1.5 + 0.75))


def test_linear_and_mean_differ_where_the_ends_do():
    """Ends 1 and 0: a bump to .4 at t = .9 gives .3 and .5−…; the mean-of-ends form cannot be 0 where the ends differ."""
    t = [0.0, 0.9, 1.0]
    assert number([1, 0.4, 0], "linear", t=t) == pytest.approx(0.3)
    assert number([1, 0.4, 0], "mean", t=t) == pytest.approx(0.5)
    assert number([1, 0.9, 0], "linear", t=t) == pytest.approx(0.8)
    assert number([1, 0.9, 0], "mean", t=t) == pytest.approx(0.5)


def test_a_path_below_its_ends():
    valley = [1.0, 0.2, 1.0]
    assert number(valley, "linear") == number(valley, "mean") == number(valley, "max") == 0
    assert number(valley, "midpoint") == pytest.approx(-0.8)
    assert number(valley, "area") == pytest.approx(-0.4)


def test_accuracy_counts_what_is_lost():
    accuracy = [0.9, 0.4, 1.0]
    options = {"metric": "accuracy", "better": "higher"}
    assert number(accuracy, "linear", **options) == pytest.approx(0.55)
    assert number(accuracy, "max", **options) == pytest.approx(0.5)
    assert number(accuracy, "midpoint", **options) == pytest.approx(0.55)
    assert number(accuracy, "linear", metric="accuracy") != pytest.approx(0.55), "control: read as a loss it is another number"


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_curve_with_a_non_finite_value_has_no_barrier(definition, bad):
    found = barrier(profile([[0.1, bad, 0.1], [0.1, 0.5, 0.1]]), "loss", definition)
    assert np.isnan(found.sel(split="train"))
    assert np.isfinite(found.sel(split="test"))
    assert found.attrs["non_finite"] == 1


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_a_flat_path_has_none(definition):
    assert number([0.3] * 25, definition) == 0
    assert number([0.0] * 25, definition) == 0


def test_other_dimensions_are_kept_and_points_sorted():
    shuffled = profile([[0.0, 1.0, 0.5], [0.0, 3.0, 0.5]], t=[0, 1, 0.5])
    both = xr.concat([shuffled, shuffled + 1], dim=xr.DataArray(["naive", "aligned"], dims="alignment"))
    found = barrier(both)
    assert found.dims == ("alignment", "split")
    assert found.sel(alignment="naive", split="train") == 0
    assert found.name == "loss_barrier"


def test_attributes_say_what_it_is():
    found = barrier(profile([0.0, 1.0, 0.0]).assign_attrs(calibration="none"), "loss", "mean")
    assert found.attrs["definition"].startswith("mean: max_t y(t) − ½")
    assert (found.attrs["points"], found.attrs["units"], found.attrs["calibration"]) == (3, "nats", "none")


def test_refusals():
    with pytest.raises(WorkbenchError, match="did you mean 'linear'"):
        barrier(profile([0, 1, 0]), "loss", "lineer")
    with pytest.raises(WorkbenchError, match="did you mean 'loss'"):
        barrier(profile([0, 1, 0]), "los")
    with pytest.raises(WorkbenchError, match=r"no point at t = 0\.5"):
        barrier(profile([0, 1, 1, 0]), "loss", "midpoint")
    with pytest.raises(WorkbenchError, match="both ends"):
        barrier(profile([0, 1, 0], t=[0, 0.5, 0.9]))
