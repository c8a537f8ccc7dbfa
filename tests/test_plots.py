"""Plots: what is drawn is what was given; gaps, floors and notes for what cannot be drawn; the report opens by itself."""

from __future__ import annotations

import re
from types import SimpleNamespace

import holoviews as hv
import numpy as np
import pytest
import xarray as xr

from workbench.errors import WorkbenchError
from workbench.plots import PLOTS
from workbench.plots.drawable import drawable, note
from workbench.plots.report import report_html

T = np.linspace(0, 1, 5)


def profiles(loss: np.ndarray | None = None) -> xr.Dataset:
    """loss and accuracy over (alignment, split, t)."""
    dims = ("alignment", "split", "t")
    values = np.array([[4 * T * (1 - T) + 0.1, 4 * T * (1 - T) + 0.2], [0 * T + 0.1, 0 * T + 0.2]]) if loss is None else loss
    return xr.Dataset(
        {
            "loss": (dims, values, {"units": "nats", "better": "lower"}),
            "accuracy": (dims, 1 - values / 10, {"units": "fraction", "better": "higher"}),
        },
        coords={"alignment": ["naive", "aligned"], "split": ["train", "test"], "t": T},
    )


def spectra() -> xr.Dataset:
    layers, gamma = ["first", "second"], [0.0, 0.3]
    r = np.arange(8.0).reshape(2, 2, 2) / 10
    data = {"R": (("stage", "gamma", "layer"), r), "R_total": (("stage", "gamma"), r.mean(-1))}
    data |= {f"null_{name}": (dims, values / 2) for name, (dims, values) in data.items()}
    sigma = np.array([[[3.0, 2.0, 0.0], [1.0, np.nan, np.nan]]] * 2)
    data["singular_values"] = (("model", "layer", "rank"), sigma)
    return xr.Dataset(
        data, coords={"stage": ["before", "after"], "gamma": gamma, "layer": layers, "model": ["anchor", "moving"]}
    )


def history() -> list[SimpleNamespace]:
    steps = [(0, "", 1.0, 0), (1, "a", 2.0, 5), (1, "b", 3.0, 4), (2, "a", 3.0, 0)]
    return [SimpleNamespace(sweep=s, factor=f, objective=o, units_changed=u) for s, f, o, u in steps]


def steps() -> dict[str, xr.DataArray]:
    values = {"none (naive)": [1.0, 1.1], "a": [0.5, np.nan], "all (aligned)": [0.0, 0.1]}
    attrs = {"definition": "linear: max_t …"}
    return {name: xr.DataArray(v, dims="split", coords={"split": ["train", "test"]}, attrs=attrs) for name, v in values.items()}


EXAMPLES = {
    "profile": lambda: PLOTS["profile"](profiles(), at=0.4),
    "matching_history": lambda: PLOTS["matching_history"](history()),
    "permutation": lambda: PLOTS["permutation"](np.array([2, 0, 1, 3]), name="a"),
    "alignment_spectrum": lambda: PLOTS["alignment_spectrum"](spectra()),
    "singular_values": lambda: PLOTS["singular_values"](spectra(), gamma=0.3),
    "barrier_steps": lambda: PLOTS["barrier_steps"](steps()),
}


def of(overlay: hv.Overlay, kind: type, label: str | None = None) -> list[hv.Element]:
    return [element for element in overlay if type(element) is kind and label in (None, element.label)]


def title(overlay: hv.Overlay) -> str:
    return overlay.opts.get("plot").kwargs["title"]


def test_every_registered_plot_has_an_example():
    assert set(PLOTS) == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_it_renders_and_says_what_it_is(name):
    overlay = EXAMPLES[name]()
    assert hv.render(overlay, backend="bokeh")
    assert title(overlay)
    assert PLOTS.entry(name).summary


def test_an_unknown_plot_is_named():
    with pytest.raises(WorkbenchError, match="did you mean 'profile'"):
        PLOTS["profil"]


def test_a_profile_draws_its_values():
    data = profiles()
    overlay = PLOTS["profile"](data)
    for alignment in ("naive", "aligned"):
        for split in ("train", "test"):
            (curve,) = of(overlay, hv.Curve, f"{alignment}, {split}")
            np.testing.assert_array_equal(curve["loss"], data["loss"].sel(alignment=alignment, split=split))
    assert len(of(overlay, hv.Curve, "chord")) == 2
    plain = PLOTS["profile"](data.sel(alignment="naive", drop=True))
    assert {curve.label for curve in of(plain, hv.Curve)} == {"chord", "train", "test"}


def test_points_not_measured_yet_are_neither_drawn_nor_missing():
    data = profiles()
    data["loss"][1] = np.nan
    measured = np.array([[True, True, True, False, False], [False] * 5])
    data["measured"] = (("alignment", "t"), measured)
    overlay = PLOTS["profile"](data)
    (curve,) = of(overlay, hv.Curve, "naive, train")
    assert len(curve) == 3
    assert not of(overlay, hv.Curve, "aligned, train")
    assert "non-finite" not in title(overlay)


def test_nan_and_infinity_become_gaps_that_are_counted():
    values = profiles()["loss"].to_numpy().copy()
    values[0, 0, 2], values[0, 1, 1] = np.nan, np.inf
    overlay = PLOTS["profile"](profiles(values))
    (curve,) = of(overlay, hv.Curve, "naive, test")
    assert np.isnan(curve["loss"][1])
    assert not np.isinf(curve["loss"]).any()
    assert "2 non-finite points left as a gap" in title(overlay)
    assert "non-finite" not in title(PLOTS["profile"](profiles()))


def test_zeros_on_a_log_axis_lie_on_a_floor_and_are_named():
    values = profiles()["loss"].to_numpy().copy()
    values[1, 0, 2] = 0.0
    overlay = PLOTS["profile"](profiles(values), log=True)
    (curve,) = of(overlay, hv.Curve, "aligned, train")
    assert curve["loss"][2] == pytest.approx(0.01)
    assert "1 value ≤ 0 drawn at the floor" in title(overlay)
    assert "floor" not in title(PLOTS["profile"](profiles(values)))
    assert hv.render(PLOTS["profile"](profiles(0 * values), log=True), backend="bokeh")  # all zero: still drawn


def test_drawable_counts():
    piece = drawable([1.0, 0.0, -1.0, np.nan, np.inf, -np.inf], log=True)
    assert (piece.non_finite, piece.floored) == (3, 2)
    assert np.nanmin(piece.values) == pytest.approx(0.1)
    assert note([]) == ""


def test_a_permutation_is_its_matrix():
    overlay = PLOTS["permutation"](np.array([2, 0, 1, 3]))
    (points,) = of(overlay, hv.Points)
    matrix = np.zeros((4, 4))
    matrix[points["place"].astype(int), points["source"].astype(int)] = 1
    np.testing.assert_array_equal(matrix @ np.arange(4), [2, 0, 1, 3])  # (P w)[i] = w[perm[i]]
    assert "3 of 4 units moved" in title(overlay)
    (copies,) = of(PLOTS["permutation"](np.array([[1, 0], [0, 1]])), hv.Points)
    np.testing.assert_array_equal(copies["source"], [1, 0, 2, 3])
    assert "0 of 3" in title(PLOTS["permutation"](np.arange(3)))


def test_a_history_keeps_the_order_of_its_steps():
    overlay = PLOTS["matching_history"](history())
    (curve,) = of(overlay, hv.Curve)
    np.testing.assert_array_equal(curve["objective"], [1, 2, 3, 3])
    assert {element.label for element in of(overlay, hv.Scatter)} == {"start", "a", "b"}
    assert len(of(overlay, hv.VLine)) == 2  # sweeps 0, 1 and 2


def test_r_stands_beside_its_null():
    data = spectra()
    overlay = PLOTS["alignment_spectrum"](data, gamma=0.3)
    (after,) = of(overlay, hv.Scatter, "after")
    np.testing.assert_allclose(
        after["R"], [*data["R"].sel(stage="after", gamma=0.3), data["R_total"].sel(stage="after", gamma=0.3)]
    )
    (null,) = of(overlay, hv.Scatter, "null, same γ")
    np.testing.assert_allclose(null["R"], after["R"] / 2)
    without = PLOTS["alignment_spectrum"](data.drop_vars(["null_R", "null_R_total"]))
    assert not of(without, hv.Scatter, "null, same γ")


def test_singular_values_end_at_the_rank():
    overlay = PLOTS["singular_values"](spectra(), layer="second")
    assert [len(curve) for curve in of(overlay, hv.Curve)] == [1, 1]
    assert "non-finite" not in title(overlay)
    zero = PLOTS["singular_values"](spectra(), layer="first", log=True)
    assert "2 values ≤ 0 drawn at the floor" in title(zero)


def test_an_undefined_barrier_is_named():
    assert "1 non-finite point" in title(PLOTS["barrier_steps"](steps()))


def test_a_report_is_one_escaped_page():
    summary = {"verdict": "a <b>", "points": 5, "nothing": None, "barriers": {"loss": {"train": 0.25, "test": float("nan")}}}
    page = report_html(summary, {"a curve & more": EXAMPLES["profile"]()}, "<script>alert(1)</script>")
    assert "<script>alert(1)</script>" not in page
    assert "a &lt;b&gt;" in page
    assert "a curve &amp; more" in page
    assert "undefined (non-finite)" in page
    assert "0.25" in page
    own = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    for loaded in ('src="http', "src='http", 'href="http', "@import"):
        assert loaded not in own
    assert len(page) < 3_000_000
    assert len(report_html(summary, {}, "no figures")) < 10_000
