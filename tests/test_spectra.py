"""Singular-vector alignment: R of a model with itself, invariances, theorem 4.1, the null table, degenerate layers."""

import itertools

import numpy as np
import pytest
import torch

from workbench.errors import Cancelled, WorkbenchError
from workbench.matching import align
from workbench.spectra import Agreement, Spectrum, gaussian_like, singular_alignment
from workbench.symmetry import PermutationSpec

CPU = torch.device("cpu")


def mlp(widths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    state, axes, last = {}, {}, len(widths) - 2
    for i, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
        out, into = (f"P{i}" if i < last else None), (f"P{i - 1}" if i else None)
        state[f"{i}.weight"] = torch.randn(n_out, n_in, generator=generator) / n_in**0.5
        state[f"{i}.bias"] = torch.zeros(n_out)
        axes[f"{i}.weight"], axes[f"{i}.bias"] = (out, into), (out,)
    return state, PermutationSpec(axes).to_symmetry(state)


def direct(first, second, gamma):
    """The double sum of the definition, by NumPy's SVD."""
    (U, S, V), (X, T, Y) = (np.linalg.svd(w.double().numpy(), full_matrices=False) for w in (first, second))
    a, b = (int((s >= gamma * s[0]).sum()) for s in (S, T))
    total = sum((U[:, i] @ X[:, j]) * (V[i] @ Y[j]) for i in range(a) for j in range(b))
    return total / min(a, b)


def test_definition_by_double_sum():
    a, b = mlp([20, 15, 8])[0], mlp([20, 15, 8], 1)[0]
    found = singular_alignment(a, b, gamma=(0.0, 0.3, 0.6))
    assert found["stage"].values.tolist() == ["before"]
    for name, gamma in itertools.product(("0.weight", "1.weight"), (0.0, 0.3, 0.6)):
        assert float(found["R"].sel(stage="before", gamma=gamma, layer=name)) == pytest.approx(direct(a[name], b[name], gamma))


def test_a_model_agrees_with_itself_and_with_its_permuted_self_once_matched():
    a, symmetry = mlp([40, 64, 64, 10])
    found = singular_alignment(a, symmetry.apply(symmetry.sample(1), a), symmetry=symmetry, null=False)
    assert np.allclose(found["R_total"].sel(stage="after"), 1, atol=1e-10)
    assert np.allclose(found["R_top_total"].sel(stage="after"), 1, atol=1e-10)
    assert np.abs(found["R_total"].sel(stage="before")).max() < 0.1, "control: before matching it does not"
    assert float(found["l2_cut"]) == pytest.approx(1)
    assert np.nanmax(np.abs(found["singular_values"].diff("model"))) < 1e-5


def test_signs_and_repeated_singular_values_do_not_matter():
    generator = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))
    W = Q @ torch.diag(torch.tensor([3.0, 2, 2, 2, 1, 1], dtype=torch.float64)) @ Q.T
    first = Spectrum.of(W, CPU)
    flip = torch.tensor([1.0, -1, 1, -1, -1, 1], dtype=torch.float64)
    R, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    turned = Spectrum(first.U.clone() * flip, first.S, first.V.clone() * flip)
    turned.U[:, 1:4], turned.V[:, 1:4] = turned.U[:, 1:4] @ R, turned.V[:, 1:4] @ R
    for kept in (1, 4, 6):
        assert Agreement(first, turned).numerator(kept, kept) == pytest.approx(kept)
    assert Agreement(first, turned).numerator(2, 2) != pytest.approx(2), "control: cutting through a degenerate block matters"


def test_theorem_the_matching_objective_is_a_weighted_sum_over_singular_pairs():
    a, symmetry = mlp([20, 30, 30, 10])
    b = mlp([20, 30, 30, 10], 1)[0]
    aligned = align(symmetry, a, b)
    total = 0.0
    for name in ("0.weight", "1.weight", "2.weight"):
        first, second = Spectrum.of(a[name], CPU), Spectrum.of(aligned.aligned[name], CPU)
        pairs = (first.U.mT @ second.U) * (first.V.mT @ second.V)
        total += float((pairs * first.S[:, None] * second.S).sum())
    assert total == pytest.approx(aligned.objective, rel=1e-6)


@pytest.mark.parametrize(
    ("width", "cut", "r0", "r3"), [(32, 12.0, 0.169, 0.187), (64, 10.8, 0.158, 0.166), (128, 8.4, 0.122, 0.125)]
)
def test_null_table(width, cut, r0, r3):
    """Unrelated Gaussian networks 784-w-w-w-10 after matching, measured independently: so much is what matching alone buys."""
    a, symmetry = mlp([784, width, width, width, 10])
    found = singular_alignment(a, gaussian_like(a, seed=5), symmetry=symmetry, gamma=(0.0, 0.3), null_samples=2)
    for value, expected in ((100 * found["null_l2_cut"], cut),):
        assert float(value) == pytest.approx(expected, abs=2)
    after = found.sel(stage="after")
    assert float(after["null_R_total"].sel(gamma=0.0)) == pytest.approx(r0, abs=0.03)
    assert float(after["null_R_total"].sel(gamma=0.3)) == pytest.approx(r3, abs=0.03)
    assert float(after["R_total"].sel(gamma=0.0)) == pytest.approx(float(after["null_R_total"].sel(gamma=0.0)), abs=0.03)


def test_the_fair_null_keeps_the_same_number_of_directions():
    a, symmetry = mlp([40, 64, 64, 10])
    spiked = dict(a)
    for name in ("0.weight", "1.weight"):
        u, v = torch.randn(a[name].shape[0]), torch.randn(a[name].shape[1])
        spiked[name] = a[name] + 0.2 * torch.outer(u, v)
    found = singular_alignment(spiked, spiked, symmetry=symmetry, gamma=(0.5,), top=(4,), seed=2)
    kept = found["kept"].sel(model="anchor", gamma=0.5)
    assert int(kept.sel(layer="1.weight")) < int(found["null_kept"].sel(gamma=0.5, layer="1.weight"))
    assert float(found["null_R_same_k"].sel(stage="after", gamma=0.5, layer="1.weight")) != float(
        found["null_R"].sel(stage="after", gamma=0.5, layer="1.weight")
    )
    assert "null_R_top_total" in found


def test_degenerate_layers_are_defined():
    zero, rank_one = torch.zeros(6, 5), torch.outer(torch.arange(1.0, 7), torch.ones(5))
    a = {"zero": zero, "one": rank_one, "bias": torch.randn(6)}
    b = {"zero": zero, "one": -rank_one, "bias": torch.randn(6)}
    found = singular_alignment(a, b, gamma=(0.0,))
    assert found["layer"].values.tolist() == ["zero", "one"]
    assert float(found["R"].sel(layer="zero").squeeze()) == 0
    assert float(found["R"].sel(layer="one").squeeze()) == pytest.approx(-1)
    assert float(found["R_total"].squeeze()) == pytest.approx(-1)
    assert found["kept"].sel(model="anchor", gamma=0.0).values.tolist() == [0, 1]


def test_convolutions_and_running_statistics():
    a = {"conv.weight": torch.randn(8, 3, 3, 3), "bn.running_mean": torch.randn(8), "bn.num_batches_tracked": torch.tensor(3)}
    drawn = gaussian_like(a, seed=1)
    assert torch.equal(drawn["bn.running_mean"], a["bn.running_mean"])
    assert not torch.equal(drawn["conv.weight"], a["conv.weight"])
    found = singular_alignment(a, drawn)
    assert found["layer"].values.tolist() == ["conv.weight"]
    flat = {n: a[n].reshape(8, -1) for n in ("conv.weight",)}, {"conv.weight": drawn["conv.weight"].reshape(8, -1)}
    assert np.allclose(found["R"], singular_alignment(*flat)["R"])


def test_refusals_and_cancel():
    a, symmetry = mlp([5, 8, 3])
    bad = {**a, "1.weight": a["1.weight"] * float("nan")}
    with pytest.raises(WorkbenchError, match=r"moving model has non-finite values \(1\.weight"):
        singular_alignment(a, bad)
    with pytest.raises(WorkbenchError, match="gamma="):
        singular_alignment(a, a, gamma=(1.0,))
    with pytest.raises(WorkbenchError, match="top="):
        singular_alignment(a, a, top=(0,))
    with pytest.raises(WorkbenchError, match="no weight with two or more axes"):
        singular_alignment({"b": torch.ones(3)}, {"b": torch.ones(3)})

    def stop(step):
        raise Cancelled

    with pytest.raises(Cancelled):
        singular_alignment(a, a, symmetry=symmetry, progress=stop)


def test_same_seed_same_null():
    a, symmetry = mlp([20, 16, 16, 5])
    runs = [singular_alignment(a, mlp([20, 16, 16, 5], 3)[0], symmetry=symmetry, seed=s) for s in (0, 0, 1)]
    assert runs[0].equals(runs[1])
    assert not runs[0]["null_R"].equals(runs[2]["null_R"])
