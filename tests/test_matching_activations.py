"""Activation matching: planted elements, a plain computation as oracle, dead units, streaming moments."""

import numpy as np
import pytest
import torch
from benchmarks.factored_models import Decoder, Encoder, Experts, gaussian_state
from scipy.optimize import linear_sum_assignment
from test_matcher_laws import Convolutional, Residual, drawn
from test_matching_frank_wolfe import Grouped, Recurrent
from torch import nn

from workbench.architectures import architecture
from workbench.errors import Cancelled, WorkbenchError
from workbench.matching import ActivationMatching, MatchingProblem, align
from workbench.matching.activations import batch_size
from workbench.matching.moments import CrossMoments
from workbench.symmetry import PermutationSpec, discover_symmetry
from workbench.symmetry.activations import activations
from workbench.symmetry.capture import capture
from workbench.tasks import task
from workbench.training import train


def samples(model, count=40):
    (given,) = model.example()
    generator = torch.Generator().manual_seed(9)
    if given.is_floating_point():
        return torch.randn(count, *given.shape[1:], generator=generator)
    return torch.randint(int(given.max()), (count, *given.shape[1:]), generator=generator)


CASES = {
    "convolutional": (Convolutional, {}),
    "residual": (Residual, {}),
    "multi-head": (Encoder, {}),
    "grouped-query, rotary": (Decoder, {}),
    "experts": (Experts, {}),
    "grouped convolution": (Grouped, {}),
    "grouped convolution, signs": (Grouped, {"signs": True}),
    "recurrent": (Recurrent, {}),
    "recurrent, signs": (Recurrent, {"signs": True}),
}


@pytest.mark.parametrize("read", ["last", "all"])
@pytest.mark.parametrize("case", CASES)
def test_planted_elements_are_found(case, read):
    build, options = CASES[case]
    model = build().eval()
    x = samples(model)
    if case.startswith("recurrent"):
        x = torch.randn(40, 12, 4, generator=torch.Generator().manual_seed(1))  # 40 steps of 12 sequences
    symmetry = discover_symmetry(model, (x,), **options)
    a = drawn(model, 0)
    planted = MatchingProblem(symmetry, a, a).searched(symmetry.sample(7))
    found = align(symmetry, a, symmetry.apply(planted, a), ActivationMatching(read=read), model=model, inputs=(x,))
    best = MatchingProblem(symmetry, a, a).objective(symmetry.identity())
    assert found.objective == pytest.approx(best, rel=1e-5)
    assert found.distance_after < 1e-3 * found.distance_before
    assert found.criterion["mean correlation of matched units"] > 0.99 > found.criterion["before matching"]
    assert "40 examples given as inputs" in found.data_used


def test_unrelated_pairing_recovers_nothing():
    """Control: the second model sees other examples than the first."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.relu(torch.randn(400, 12, generator=generator)) for _ in range(2))
    moments = CrossMoments()
    moments.add(a, b)
    assert float(moments.correlation().abs().max()) < 0.3
    same = CrossMoments()
    same.add(a, a)
    assert torch.allclose(same.correlation().diagonal(), torch.ones(12).double(), atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy divides by the deviation of dead units
@pytest.mark.parametrize("cost", ["correlation", "uncentred", "covariance"])
def test_against_a_plain_computation(cost):
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3))
    x = torch.randn(333, 6, generator=torch.Generator().manual_seed(0))
    symmetry = discover_symmetry(model, (x,))
    a, b = drawn(model, 0, torch.float64), drawn(model, 1, torch.float64)
    found = align(symmetry, a, b, ActivationMatching(cost=cost, batch_size=50), model=model, inputs=(x,))

    def hidden(state):
        first = torch.relu(x.double() @ state["0.weight"].T + state["0.bias"])
        return first, torch.relu(first @ state["2.weight"].T + state["2.bias"])

    for name, one, other in zip(symmetry.groups, hidden(a), hidden(b), strict=True):
        h, k = one.numpy(), other.numpy()
        expected = {
            "correlation": np.nan_to_num(np.corrcoef(h.T, k.T)[: h.shape[1], h.shape[1] :]),
            "uncentred": h.T @ k / len(h),
            "covariance": np.cov(h.T, k.T, bias=True)[: h.shape[1], h.shape[1] :],
        }[cost]
        reached = expected[np.arange(len(expected)), found.element.permutations[name].numpy()].sum()
        rows, columns = linear_sum_assignment(expected, maximize=True)
        assert reached == pytest.approx(expected[rows, columns].sum(), rel=1e-9)


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_moments_do_not_depend_on_the_batches(size):
    generator = torch.Generator().manual_seed(0)
    a, b = (5 + torch.randn(900, 8, generator=generator) for _ in range(2))
    whole, parts = CrossMoments(), CrossMoments()
    whole.add(a, b)
    for start in range(0, 900, size):
        parts.add(a[start : start + size], b[start : start + size])
    assert torch.allclose(whole.correlation(), parts.correlation(), atol=1e-5)
    assert torch.allclose(whole.uncentred(), parts.uncentred(), rtol=1e-5)
    exact = np.corrcoef(a.double().numpy().T, b.double().numpy().T)[:8, 8:]
    assert np.abs(parts.correlation().numpy() - exact).max() < 1e-5
    assert np.abs(parts.uncentred().numpy() - (a.double().T @ b.double() / 900).numpy()).max() < 1e-4
    held = [parts._product, *parts._sums, *parts._squares]
    assert sum(t.numel() for t in held) == 8 * 8 + 4 * 8  # whatever the number of samples


def test_a_large_mean_does_not_hide_the_variance():
    generator = torch.Generator().manual_seed(0)
    a = 3000 + 0.1 * torch.randn(5000, 4, generator=generator)
    moments = CrossMoments()
    for part in a.split(500):
        moments.add(part, part)
    assert torch.allclose(moments.correlation().diagonal(), torch.ones(4).double(), atol=1e-4)
    # Control: about zero, in this precision, the variance drowns.
    naive = a.square().mean(0) - a.mean(0).square()
    assert float((naive - 0.01).abs().max()) > 0.1


def test_dead_units_are_matched_last_and_listed():
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    symmetry = discover_symmetry(model, (x,))
    a = drawn(model, 0)
    b = symmetry.apply(symmetry.sample(3), a)
    for state, units in ((a, [1, 4]), (b, [0, 5, 6])):
        for unit in units:
            state["0.weight"][unit], state["0.bias"][unit] = 0.0, -1.0
    found = align(symmetry, a, b, "activations", model=model, inputs=(x,))
    assert any("2 units of the anchor and 3 of the moving model are dead" in note for note in found.notes)
    source = found.element.permutations["0"].tolist()
    assert {source[1], source[4]} <= {0, 5, 6}
    assert found.preservation.passed
    everything = {**a, "0.weight": torch.zeros_like(a["0.weight"]), "0.bias": torch.full((10,), -1.0)}
    dead = align(symmetry, everything, everything, "activations", model=model, inputs=(x,))
    assert dead.element.is_identity
    assert any("10 units of the anchor and 10" in note for note in dead.notes)


def test_batches_of_any_size_give_one_answer():
    model = Convolutional().eval()
    x = samples(model, 37)
    symmetry = discover_symmetry(model, (x[:2],))
    a, b = drawn(model, 0), drawn(model, 1)
    answers = {align(symmetry, a, b, ActivationMatching(batch_size=n), model=model, inputs=(x,)).element for n in (5, 36, 500)}
    assert len(answers) == 1
    fewer = align(symmetry, a, b, ActivationMatching(examples=10), model=model, inputs=(x,))
    assert "10 examples" in fewer.data_used


def test_the_size_of_batches():
    assert batch_size(60_000, 500) == 500
    assert batch_size(1400, 500) == 350
    assert batch_size(37, 500) == 37
    assert batch_size(1009, 500) == 500  # a prime: the rest is a batch of its own


def test_channels_are_read_over_all_positions():
    model = Convolutional().eval()
    x = samples(model, 6)
    symmetry = discover_symmetry(model, (x,))
    found = {item.node: item for item in activations(symmetry, capture(model, (x,)))}
    assert {label for item in found.values() for label in item.factors} == set(symmetry.groups)
    assert [layout.size for layout in found["relu"].layouts] == [6, 6, 4, 4]
    assert any("3" in item.read for item in found.values())


def test_cancelled_after_some_batches_the_moments_so_far_count():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    x = torch.randn(100, 6, generator=torch.Generator().manual_seed(0))
    symmetry = discover_symmetry(model, (x,))
    a = drawn(model, 0)
    b = symmetry.apply(symmetry.sample(2), a)

    def stop(step):
        if step.done >= 40:
            raise Cancelled

    found = align(symmetry, a, b, ActivationMatching(batch_size=20), model=model, inputs=(x,), progress=stop)
    assert found.cancelled
    assert "40 examples" in found.data_used
    assert found.distance_after == 0


def test_a_written_specification_is_enough_and_a_foreign_one_is_refused():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    x = torch.randn(100, 6, generator=torch.Generator().manual_seed(0))
    axes = {"0.weight": ("h", None), "0.bias": ("h",), "2.weight": (None, "h"), "2.bias": (None,)}
    a = drawn(model, 0)
    symmetry = PermutationSpec(axes).to_symmetry(a)
    planted = symmetry.sample(2)
    found = align(symmetry, a, symmetry.apply(planted, a), "activations", model=model, inputs=(x,))
    assert found.element == planted.inverse()
    inputs_free = PermutationSpec({**axes, "0.weight": (None, None), "0.bias": (None,), "2.weight": (None, None), "2.bias": ("h",)})
    other = inputs_free.to_symmetry(a)
    with pytest.raises(WorkbenchError, match="No value inside the model carries"):
        align(other, a, a, "activations", model=model, inputs=(x,))


def test_wrong_use_is_refused_in_words():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    x = torch.randn(5, 6)
    symmetry = discover_symmetry(model, (x,))
    a = gaussian_state(model, 0)
    with pytest.raises(WorkbenchError, match=r"without data.*need no data"):
        align(symmetry, a, a, "activations")
    with pytest.raises(WorkbenchError, match=r"given 1 example.*two or more"):
        align(symmetry, a, a, "activations", model=model, inputs=(x[:1],))
    for wrong in ({"cost": "cosine"}, {"read": "first"}, {"batch_size": 0}, {"examples": -1}):
        with pytest.raises(WorkbenchError, match=next(iter(wrong))):
            ActivationMatching(**wrong)


def test_digits_are_matched_about_as_well_as_by_weights():
    from workbench.barriers import barrier
    from workbench.paths import LinearPath
    from workbench.profiles import profile_path

    data = task("digits")
    net = architecture("mlp", inputs=64, outputs=10, width=64, depth=2)
    a, b = (one.state for one in train(net, data, seeds=(0, 1), epochs=60, batch_size=50, optimizer="adam", lr=1e-3))
    model = net.build(seed=0)
    symmetry = discover_symmetry(model, data.example_inputs)

    def line(state):
        return float(barrier(profile_path(LinearPath(a, state), model, data, points=5, splits=("train",)))[0])

    naive = line(b)
    for cost in ("correlation", "uncentred"):
        found = align(symmetry, a, b, ActivationMatching(cost=cost), model=model, task=data)
        assert line(found.aligned) < 0.2 * naive
        assert "1400 examples of digits/train" in found.data_used
