"""Paths: exact ends in every dtype, self-merge, ties, integer buffers, corners."""

import pytest
import torch

from workbench.errors import WorkbenchError
from workbench.paths import BezierPath, LinearPath, Path, PolygonalPath
from workbench.states import fingerprint

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def state(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    drawn = {"a": torch.randn(40, 30, generator=generator).to(dtype), "b": torch.randn(9, generator=generator).to(dtype)}
    drawn["b"][0] = -0.0
    return {**drawn, "count": torch.tensor(seed), "mask": torch.tensor([seed % 2 == 0, True])}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "kind",
    [
        LinearPath,
        lambda a, b: PolygonalPath([a, state(5, a["a"].dtype), b]),
        lambda a, b: BezierPath([a, state(5, a["a"].dtype), b]),
    ],
)
def test_ends_are_bit_equal(kind, dtype):
    a, b = state(1, dtype), state(2, dtype)
    before = fingerprint(a), fingerprint(b)
    path = kind(a, b)
    assert isinstance(path, Path)
    assert fingerprint(path(0.0)) == fingerprint(a)
    assert fingerprint(path(1.0)) == fingerprint(b)
    assert {path(0.5)[n].dtype for n in ("a", "b")} == {dtype}
    path(0.3)["a"].zero_()
    path(0.0)["a"].zero_()
    assert (fingerprint(a), fingerprint(b)) == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_other_formula_would_miss_the_end(dtype):
    """Control for the test above: A + 1·(B − A) is not B."""
    a, b = state(1, dtype)["a"], state(2, dtype)["a"]
    assert not torch.equal(a + 1.0 * (b - a), b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_merging_a_model_with_itself_changes_nothing(dtype):
    a = state(3, dtype)
    for path in (LinearPath(a, state(3, dtype)), BezierPath([a, a, a]), PolygonalPath([a, a])):
        assert all(fingerprint(path(t / 7)) == fingerprint(a) for t in range(8))
    a32 = state(3)["a"]
    assert not all(torch.equal((1 - t / 7) * a32 + (t / 7) * a32, a32) for t in range(8)), "control: plain arithmetic does not"


def test_interior_is_the_formula():
    a, b, c = (state(s, torch.float64) for s in (1, 2, 3))
    torch.testing.assert_close(LinearPath(a, b)(0.3)["a"], 0.7 * a["a"] + 0.3 * b["a"])
    torch.testing.assert_close(BezierPath([a, b, c])(0.3)["a"], 0.49 * a["a"] + 0.42 * b["a"] + 0.09 * c["a"])
    torch.testing.assert_close(PolygonalPath([a, b, c])(0.3)["a"], 0.4 * a["a"] + 0.6 * b["a"])
    middle = LinearPath(a, b)(0.5)
    for path in (PolygonalPath([a, middle, b]), BezierPath([a, middle, b])):
        torch.testing.assert_close(path(0.2)["a"], LinearPath(a, b)(0.2)["a"])


def test_corners_of_a_polygon_are_exact():
    points = [state(s) for s in range(6)]
    path = PolygonalPath(points)
    assert all(fingerprint(path(i / 5)) == fingerprint(point) for i, point in enumerate(points))


def test_integer_buffers_come_from_the_nearer_end():
    path = LinearPath(state(1), state(2))
    assert [int(path(t)["count"]) for t in (0.0, 0.4, 0.5, 0.6, 1.0)] == [1, 1, 1, 2, 2]
    assert path(0.4)["mask"].dtype == torch.bool


def test_ties_stay_tied():
    shared = [torch.randn(4, 4) for _ in range(2)]
    a, b = ({"embed": t, "head": t} for t in shared)
    mixed = LinearPath(a, b)(0.25)
    assert mixed["embed"] is mixed["head"]
    untied = LinearPath(a, {"embed": shared[1], "head": shared[1].clone()})(0.25)
    assert untied["embed"] is not untied["head"]


def test_different_models_are_refused():
    with pytest.raises(WorkbenchError, match="do not hold the same tensors"):
        LinearPath(state(1), {**state(2), "a": torch.zeros(2, 2)})
    with pytest.raises(WorkbenchError, match="at least 2"):
        BezierPath([state(1)])
