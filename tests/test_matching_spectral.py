"""Spectral matching: truncation commutes with the group; what the leading directions do and the trailing ones do not."""

import numpy as np
import pytest
import torch
from benchmarks.factored_models import Decoder, Encoder, Experts, gaussian_state
from test_matching import gaussian_mlp
from test_matching_frank_wolfe import Grouped, Recurrent

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.errors import WorkbenchError
from workbench.matching import AnnealedMatching, MatchingProblem, SpectralMatching, WeightMatching, align
from workbench.matching.truncation import Spectra
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.symmetry import discover_symmetry
from workbench.tasks import task
from workbench.training import train


@pytest.mark.parametrize("build", [Encoder, Decoder, Experts, lambda: Experts(gates="one-hot"), Grouped, Recurrent])
def test_truncation_commutes_with_the_group(build):
    model = build()
    symmetry = discover_symmetry(model, model.example(), signs=True)
    state = gaussian_state(model, 0)
    names = MatchingProblem(symmetry, state, state).names
    for seed, rank in ((0, 1), (1, 3)):
        element = MatchingProblem(symmetry, state, state).searched(symmetry.sample(seed))
        there = Spectra(symmetry, symmetry.apply(element, state), names).truncated(rank)
        back = symmetry.apply(element, Spectra(symmetry, state, names).truncated(rank))
        for name in state:
            assert torch.allclose(there[name].double(), back[name].double(), atol=1e-9), name
        changed = [n for n in names if not torch.allclose(back[n], symmetry.apply(element, state)[n])]
        assert len(changed) >= 2  # control: something was cut


def test_a_grouped_convolution_is_not_one_matrix():
    """Control: as one matrix, its truncation would not commute, since every group may order its inputs in its own way."""
    model = Grouped()
    symmetry = discover_symmetry(model, model.example())
    state = gaussian_state(model, 0)
    element = symmetry.sample(1)

    def whole(weight, rank=2):
        u, s, v = torch.linalg.svd(weight.flatten(1), full_matrices=False)
        return ((u[:, :rank] * s[:rank]) @ v[:rank]).reshape(weight.shape)

    moved = whole(symmetry.apply(element, state)["3.weight"])
    assert not torch.allclose(symmetry.apply(element, {**state, "3.weight": whole(state["3.weight"])})["3.weight"], moved)


def test_truncation_is_the_best_of_its_rank_and_energy_counts_squares():
    a, symmetry = gaussian_mlp([12, 9, 7, 4], 0, torch.float64)
    spectra = Spectra(symmetry, a, list(a))
    cut = spectra.truncated(3)
    for name in ("0.weight", "1.weight", "2.weight"):
        values = torch.linalg.svdvals(a[name])
        assert torch.linalg.matrix_rank(cut[name]) == min(3, len(values))
        assert float((a[name] - cut[name]).norm()) == pytest.approx(float(values[3:].norm()), abs=1e-9)
        shares = (values.square().cumsum(0) / values.square().sum()).tolist()
        assert spectra.energy_ranks(0.6)[name] == next(k for k, share in enumerate(shares, 1) if share >= 0.6)
    assert cut["0.bias"] is a["0.bias"]
    assert spectra.energy_ranks(1.0)["0.weight"] == 9
    assert spectra.largest == 9


def test_a_zero_layer_and_repeated_values_are_defined():
    a, symmetry = gaussian_mlp([8, 6, 5, 3], 0)
    a["1.weight"] = torch.zeros_like(a["1.weight"])
    a["0.weight"] = torch.eye(6, 8)
    b = symmetry.apply(symmetry.sample(1), a)
    found = align(symmetry, a, b, SpectralMatching(rank=2))
    assert np.isfinite(found.objective)


def test_all_directions_are_plain_weight_matching():
    a, symmetry = gaussian_mlp([20, 16, 16, 5], 0)
    b, _ = gaussian_mlp([20, 16, 16, 5], 9)
    whole = align(symmetry, a, b, SpectralMatching(rank=16))
    plain = align(symmetry, a, b, WeightMatching(include_biases=False))
    assert whole.element == plain.element
    assert whole.objective == pytest.approx(MatchingProblem(symmetry, a, b).objective(plain.element))
    fewer = align(symmetry, a, b, SpectralMatching(rank=2))
    assert fewer.element != plain.element
    assert fewer.criterion["objective of the truncated weights"] != pytest.approx(fewer.objective)


def test_the_ranks_of_the_annealed_start():
    assert AnnealedMatching().ranks(512) == [16, 32, 64, 128, 256, 0]
    assert AnnealedMatching(last_rank=64).ranks(512) == [16, 32, 64]
    assert AnnealedMatching(start_rank=3, growth=1.1, last_rank=6).ranks(50) == [3, 4, 5, 6]
    assert AnnealedMatching().ranks(10) == [0]
    assert AnnealedMatching(last_rank=900).ranks(512)[-1] == 0
    a, symmetry = gaussian_mlp([30, 40, 40, 5], 0)
    b, _ = gaussian_mlp([30, 40, 40, 5], 3)
    found = align(symmetry, a, b, AnnealedMatching(start_rank=8))
    assert "ranks 8, 16, 32, full" in found.notes[0]
    assert sum(step.factor == "" for step in found.history) == 4
    # The last stage is weight matching on the full weights: no single move is left.
    assert align(symmetry, a, b, WeightMatching(), start=found).element == found.element
    assert found.converged


@pytest.fixture(scope="module")
def digits():
    data = task("digits")
    net = architecture("mlp", inputs=64, outputs=10, width=256, depth=2)
    states = [one.state for one in train(net, data, seeds=range(4), epochs=40, batch_size=50, optimizer="adam", lr=1e-3)]
    model = net.build(seed=0)
    return model, data, discover_symmetry(model, data.example_inputs), states


def line(model, data, first, second):
    return float(barrier(profile_path(LinearPath(first, second), model, data, points=5, splits=("train",)))[0])


def test_leading_directions_connect_and_trailing_ones_do_not(digits):
    """Control: the same matching on what truncation takes away stays near the naive barrier."""
    model, data, symmetry, states = digits
    names = MatchingProblem(symmetry, states[0], states[0]).names
    leading, trailing, plain, naive = [], [], [], []
    for a, b in ((states[0], states[1]), (states[2], states[3])):
        naive.append(line(model, data, a, b))
        plain.append(line(model, data, a, align(symmetry, a, b).aligned))
        leading.append(line(model, data, a, align(symmetry, a, b, SpectralMatching(rank=16)).aligned))
        rests = []
        for state in (a, b):
            cut = Spectra(symmetry, state, names).truncated(32)
            rests.append({n: t - cut[n].to(t.dtype) if t.dim() > 1 and cut[n] is not t else t for n, t in state.items()})
        element = align(symmetry, *rests, WeightMatching(include_biases=False)).element
        trailing.append(line(model, data, a, symmetry.apply(element, b)))
    assert max(leading) < 0.1 * min(naive)
    assert np.mean(leading) < np.mean(plain) + 0.01
    assert np.mean(trailing) > 3 * np.mean(leading)


def test_the_annealed_start_climbs_higher(digits):
    _, _, symmetry, states = digits
    higher = 0
    for a, b in ((states[0], states[1]), (states[2], states[3]), (states[0], states[3])):
        plain = max(align(symmetry, a, b, seed=seed).objective for seed in range(2))
        higher += align(symmetry, a, b, "annealed").objective > plain
    assert higher >= 2


def test_wrong_fields_are_refused_in_words():
    for kind, wrong in (
        (SpectralMatching, {"rank": -1}),
        (SpectralMatching, {"energy": 0.0}),
        (SpectralMatching, {"least": 0}),
        (SpectralMatching, {"max_sweeps": 0}),
        (AnnealedMatching, {"growth": 1.0}),
        (AnnealedMatching, {"start_rank": 0}),
        (AnnealedMatching, {"order": "sorted"}),
    ):
        with pytest.raises(WorkbenchError, match=next(iter(wrong))):
            kind(**wrong)
