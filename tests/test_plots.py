"""Plots: what is drawn is what was given; gaps, floors and notes for what cannot be drawn; the report opens by itself."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from types import SimpleNamespace

import holoviews as hv
import numpy as np
import pytest
import xarray as xr

from workbench.errors import WorkbenchError
from workbench.plots import PLOTS
from workbench.plots.drawable import drawable, note
from workbench.plots.report import report_html
from workbench.plots.style import ALIGNED, NAIVE, OTHER_COLOURS

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


def group(size: int, over: tuple[str, ...] = (), copies: int = 1) -> SimpleNamespace:
    return SimpleNamespace(size=size, over=over, copies=copies, kind="permutation", log10_order=1.0)


def axis(tensor: str, number: int, factors: tuple[str, ...] = (), reason: str = "", shape=(4, 6)) -> SimpleNamespace:
    size = shape[number]
    return SimpleNamespace(
        tensor=tensor, shape=shape, role="moved", axis=number, size=size, layout=" × ".join(factors), factors=factors, reason=reason
    )


GROUPS = {"heads": group(2), "inside": group(3, ("heads",), 2)}
AXES = [
    axis("first", 0, ("heads",)),
    axis("first", 1, reason="axis 1 of the model's input x"),
    axis("second", 0, ("heads", "inside"), reason="a rotary table varies"),
    axis("second", 1, ("inside",)),
]


def change(shift: float = 0.0, examples: int = 7) -> xr.Dataset:
    before = np.arange(3.0 * examples).reshape(examples, 3)
    attrs = {"max_abs_change": shift, "scale": float(before.max()), "same": int(shift == 0)}
    return xr.Dataset(
        {"outputs": (("weights", "example", "output"), np.stack([before, before + shift]), attrs)},
        coords={"weights": ["before", "after"]},
    )


EXAMPLES = {
    "profile": lambda: PLOTS["profile"](profiles(), at=0.4),
    "matching_history": lambda: PLOTS["matching_history"](history()),
    "permutation": lambda: PLOTS["permutation"](np.array([2, 0, 1, 3]), name="a"),
    "alignment_spectrum": lambda: PLOTS["alignment_spectrum"](spectra()),
    "singular_values": lambda: PLOTS["singular_values"](spectra(), gamma=0.3),
    "barrier_steps": lambda: PLOTS["barrier_steps"](steps()),
    "symmetry_graph": lambda: PLOTS["symmetry_graph"](GROUPS, AXES, selected="inside"),
    "output_change": lambda: PLOTS["output_change"](change(0.5)),
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


def test_further_alignments_have_a_colour_and_a_mark_of_their_own():
    data = profiles()
    own = data.sel(alignment=["aligned"])
    more = [own.assign_coords(alignment=[name]) + shift for name, shift in (("1 · a", 1.0), ("2 · b", 2.0))]
    overlay = PLOTS["profile"](
        xr.concat([data, *more], "alignment"), words={"aligned": "3 · c"}, colours={"2 · b": OTHER_COLOURS[4]}
    )
    labels = {f"{name}, {split}" for name in ("naive", "3 · c", "1 · a", "2 · b") for split in ("train", "test")}
    assert {curve.label for curve in of(overlay, hv.Curve)} == labels | {"chord"}
    (curve,) = of(overlay, hv.Curve, "2 · b, test")
    np.testing.assert_allclose(curve["loss"], data["loss"].sel(alignment="aligned", split="test") + 2)
    (dots,) = of(overlay, hv.Scatter)
    look = {of: (colour, mark) for of, colour, mark in zip(dots["of"], dots["colour"], dots["mark"], strict=True)}
    assert look["3 · c, train"][0] == ALIGNED
    assert look["2 · b, train"][0] == OTHER_COLOURS[4]
    assert len({mark for _, mark in look.values()}) == 3  # naive and the one shown share the round one
    assert hv.render(overlay, backend="bokeh")


# What the protan and the deutan eye see of a linear RGB colour (Machado, Oliveira, Fernandes 2009, full severity).
SEEN = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "common": np.eye(3),
}


def lab(colour: str, eye: str) -> np.ndarray:
    """CIELAB (D65) of an sRGB colour as an eye sees it."""
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(np.array(SEEN[eye]) @ linear, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def apart(colours: list[str], eye: str) -> float:
    """The smallest CIE76 difference between two of them."""
    seen = [lab(colour, eye) for colour in colours]
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2))


@pytest.mark.parametrize("eye", SEEN)
def test_alignments_side_by_side_can_be_told_apart(eye):
    assert apart([NAIVE, ALIGNED, *OTHER_COLOURS], eye) >= 25


def test_colours_that_only_some_eyes_tell_apart_would_be_noticed():
    pair = ["#cc7a00", "#7a9e00"]
    assert apart(pair, "common") > 25 > apart(pair, "deutan")


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


def test_the_graph_has_an_edge_for_every_factor_of_every_axis_and_a_reason_for_what_stays():
    overlay = PLOTS["symmetry_graph"](GROUPS, AXES)
    (edges,) = of(overlay, hv.Contours)
    assert _edges(edges) == {
        ("heads", "first axis 0"),
        ("heads", "second axis 0"),
        ("inside", "second axis 0"),
        ("inside", "second axis 1"),
    }
    moved, still = of(overlay, hv.Rectangles)
    assert list(moved["factor"]) == ["heads", "heads", "inside", "inside"]
    assert list(still["reason"]) == ["axis 1 of the model's input x", "a rotary table varies"]
    assert list(still["part"]) == ["all of it", "a part of it, heads × inside"]
    # the bar of one axis is as wide as its parts together, and no two of them overlap
    spans = [*zip(moved["left"][1:3], moved["right"][1:3], strict=True), (still["left"][1], still["right"][1])]
    assert all(left[1] <= right[0] + 1e-12 for left, right in pairwise(spans))
    (points,) = of(overlay, hv.Points)
    assert dict(zip(points["factor"], points["units"], strict=True)) == {"heads": "2", "inside": "2 × 3"}


def test_a_tensor_that_moves_as_a_whole_has_a_bar_before_its_axes():
    whole = SimpleNamespace(**{**vars(axis("first", 0, ("heads",))), "axis": None, "size": 3})
    overlay = PLOTS["symmetry_graph"](GROUPS, [whole, *AXES])
    assert ("heads", "first as a whole, among 3 branches") in _edges(of(overlay, hv.Contours)[0])
    moved = of(overlay, hv.Rectangles)[0]
    first = {name: left for name, left in zip(moved["axis"], moved["left"], strict=True) if name.startswith("first")}
    assert first["first as a whole, among 3 branches"] < first["first axis 0 of size 4"]


def test_what_is_selected_stands_out():
    overlay = PLOTS["symmetry_graph"](GROUPS, AXES, selected="inside")
    (points,) = of(overlay, hv.Points)
    alpha = dict(zip(points["factor"], points["alpha"], strict=True))
    assert alpha["inside"] == 1.0 > alpha["heads"]
    plain = of(PLOTS["symmetry_graph"](GROUPS, AXES), hv.Points)[0]
    assert set(plain["alpha"]) == {1.0}


def test_of_too_many_tensors_the_rest_is_counted():
    many = [axis(f"t{i}", 0, ("heads",) if i % 2 else ("inside",)) for i in range(40)]
    assert "30 more tensors not drawn" in title(PLOTS["symmetry_graph"](GROUPS, many, most=10))
    own = PLOTS["symmetry_graph"](GROUPS, many, most=10, selected="heads")
    (edges,) = of(own, hv.Contours)
    assert {tensor for _, tensor in _edges(edges)} == {f"t{i} axis 0" for i in range(40) if i % 2}
    assert "not drawn" not in title(PLOTS["symmetry_graph"](GROUPS, many, most=None))


def test_a_graph_without_factors_is_still_drawn():
    still = [axis("only", 0, reason="axis 0 of the model's output"), axis("only", 1, reason="axis 1 of the model's input")]
    assert hv.render(PLOTS["symmetry_graph"]({}, still), backend="bokeh")


def _edges(paths: hv.Contours) -> set[tuple[str, str]]:
    return {(piece["factor"], piece["axis"]) for piece in paths.data}


def test_outputs_lie_in_their_rings_or_beside_them():
    for shift in (0.0, 0.5):
        overlay = PLOTS["output_change"](change(shift), examples=4)
        before, after = (of(overlay, hv.Scatter, name)[0] for name in ("before", "after"))
        np.testing.assert_allclose(after["value"] - before["value"], shift)
        assert len(before) == 12
        assert f"Largest difference {shift:.2g}" in title(overlay)
        assert "4 of 7 examples drawn" in title(overlay)
    assert "drawn" not in title(PLOTS["output_change"](change(examples=3)))
    lost = change()
    lost["outputs"][1, 0, 0] = np.nan
    assert "1 non-finite point" in title(PLOTS["output_change"](lost))


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
