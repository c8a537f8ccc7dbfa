"""Heads ordered by what no change of basis inside them can touch: the order is found where the weights themselves hide it."""

import pytest
import torch
from benchmarks.factored_models import Decoder, Encoder, Experts, gaussian_state
from torch import nn
from torch.func import functional_call

from workbench.errors import WorkbenchError
from workbench.matching import MatchingProblem, WeightMatching, align
from workbench.matching.heads import agreement, head_pairs, similarity
from workbench.symmetry import discover_symmetry

INVARIANT = WeightMatching(head_similarity="invariant")


class Packed(nn.Module):
    """torch's own attention: queries, keys and values in one tensor."""

    def __init__(self):
        super().__init__()
        self.into, self.attention, self.head = nn.Linear(5, 24), nn.MultiheadAttention(24, 4, batch_first=True), nn.Linear(24, 3)

    def forward(self, x):
        x = self.into(x)
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])

    def example(self):
        return (torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0)),)


MODELS = {
    "multi-head": Encoder,
    "grouped-query, rotary": Decoder,
    "grouped-query": lambda: Decoder(rotary=False),
    "multi-query": lambda: Decoder(kv_heads=1, rotary=False),
    "packed": Packed,
}


def invertible(generator, size):
    """Without a trace: nothing of the old basis shows through on average."""
    drawn = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return drawn - drawn.trace() / size * torch.eye(size, dtype=torch.float64)


def commuting_with_rotations(generator, size):
    """One scaled rotation per frequency pair (i, i + size/2)."""
    half = size // 2
    a, b = (torch.diag(torch.randn(half, generator=generator, dtype=torch.float64)) for _ in range(2))
    return torch.cat([torch.cat([a, -b], 1), torch.cat([b, a], 1)])


def change_basis(model, state, seed):
    """Another basis inside every head of every attention: x ↦ A x on queries, A⁻ᵀ on keys, B on values, their inverse on o."""
    generator = torch.Generator().manual_seed(seed)
    out = {name: tensor.clone() for name, tensor in state.items()}

    def act(name, matrices, axis=0):
        if name in out:
            moved = out[name].movedim(axis, 0)
            heads = moved.reshape(len(matrices), -1, *moved.shape[1:])
            out[name] = torch.einsum("hij,hj...->hi...", torch.stack(matrices), heads).reshape(moved.shape).movedim(0, axis)

    for i, attention in enumerate(model.attention):
        repeat = attention.heads // attention.kv_heads
        draw = commuting_with_rotations if attention.rotary else invertible
        on_keys = [draw(generator, attention.dk) for _ in range(attention.kv_heads)]
        on_values = [invertible(generator, attention.dv) for _ in range(attention.kv_heads)]
        for part in ("weight", "bias"):
            act(f"attention.{i}.k.{part}", [m.inverse().T for m in on_keys])
            act(f"attention.{i}.q.{part}", [m for m in on_keys for _ in range(repeat)])
            act(f"attention.{i}.v.{part}", on_values)
        act(f"attention.{i}.o.weight", [m.inverse().T for m in on_values for _ in range(repeat)], axis=1)
        if f"attention.{i}.k.bias" in out:
            out[f"attention.{i}.k.bias"] = torch.randn(out[f"attention.{i}.k.bias"].shape, generator=generator).double()  # dead
    return out


def noisy(state, seed, sigma=0.7):
    """Noise of ``sigma`` times each tensor's standard deviation: the two models are alike, not copies."""
    generator = torch.Generator().manual_seed(seed)
    return {n: t + sigma * t.std() * torch.randn(t.shape, generator=generator, dtype=t.dtype) for n, t in state.items()}


def head_factors(symmetry, problem):
    """The heads, and the query heads inside their groups."""
    out = []
    for name in symmetry.groups:
        pairs = head_pairs(problem, name)
        out += [name] * bool(pairs) + sorted({pair.row for pair in pairs} - {None})
    return out


HIDDEN = {
    "multi-head": lambda: Encoder(width=32, heads=8, dk=16, dv=16),
    "grouped-query, rotary": lambda: Decoder(width=32, heads=8, kv_heads=4, size=16, layers=1),
    "grouped-query": lambda: Decoder(width=32, heads=8, kv_heads=4, size=16, layers=1, rotary=False),
    "multi-query": lambda: Decoder(width=32, heads=8, kv_heads=1, size=16, layers=1, rotary=False),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_the_order_of_heads_is_found_under_a_change_of_basis(name):
    """Control: the weights themselves do not tell it."""
    model = HIDDEN[name]()
    symmetry = discover_symmetry(model, model.example())
    model.double()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in model.example())
    right = {"invariant": 0, "weights": 0}
    for seed in range(6):
        a = gaussian_state(model, seed)
        factors = head_factors(symmetry, MatchingProblem(symmetry, a, a))
        planted = symmetry.sample(50 + seed).restrict(factors)
        b = noisy(symmetry.apply(planted, a), seed)
        outputs = functional_call(model, b, inputs)
        b = change_basis(model, b, seed)
        assert (functional_call(model, b, inputs) - outputs).abs().max() < 1e-8 * outputs.abs().max()
        for kind in right:
            found = align(symmetry, a, b, WeightMatching(head_similarity=kind), seed=seed, model=model, inputs=inputs)
            assert found.preservation.passed
            back = planted.inverse()
            right[kind] += all(torch.equal(found.element.permutations[f], back.permutations[f]) for f in factors)
    assert right["invariant"] == 6
    assert right["weights"] <= 4, right


@pytest.mark.parametrize("name", MODELS)
def test_without_a_change_of_basis_the_whole_element_is_found(name):
    model = MODELS[name]()
    symmetry = discover_symmetry(model, model.example())
    for seed in range(3):
        a = gaussian_state(model, seed)
        planted = symmetry.sample(70 + seed)
        found = align(symmetry, a, symmetry.apply(planted, a), INVARIANT, seed=seed)
        assert found.element == planted.inverse()
        assert found.distance_after == 0
        assert any(note.startswith("ordered by invariant products: ") and "nothing" not in note for note in found.notes)


def test_tables_equal_the_explicit_products():
    """tr of d × d products against the D × D matrices written out, biases and the weights w included."""
    model = Encoder()
    symmetry = discover_symmetry(model, model.example())
    a, b = gaussian_state(model, 0), gaussian_state(model, 1)
    problem, element = MatchingProblem(symmetry, a, b), symmetry.sample(3)
    (name,) = [n for n in symmetry.groups if head_pairs(problem, n)]
    table = similarity(problem, head_pairs(problem, name), element).tables[None]
    stream = element.permutations["into"]

    def product(state, kind, move):
        q, k = (state[f"attention.0.{part}.weight"] for part in kind)
        bias = state[f"attention.0.{kind[0]}.bias"]
        k = k.T if kind[1] == "o" else k
        q, k = (w[:, stream] if move else w for w in (q, k))
        q = torch.cat([q, bias[:, None]], 1)
        return torch.einsum("hdx,hdy->hxy", q.view(6, -1, 25), k.reshape(6, -1, 24)).flatten(1)

    expected = 0
    for kind in ("qk", "vo"):
        m, n = product(a, kind, False), product(b, kind, True)
        mass = [sum(torch.linalg.matrix_norm(x.view(25, 24), ord="nuc") for x in side) for side in (m, n)]
        expected = expected + 2 * (mass[0] * mass[1]).sqrt() / (m.norm() * n.norm()) * (m @ n.T)
    torch.testing.assert_close(table, expected, rtol=1e-10, atol=1e-10)
    heads = element.permutations[name]
    pairs = head_pairs(problem, name)
    assert agreement(problem, pairs, element) == pytest.approx(float(table[torch.arange(6), heads].sum()))
    unmoved = similarity(problem, pairs, symmetry.identity()).tables[None]
    assert (unmoved - expected).abs().max() > 0.1, "the stream's permutation must matter"


def test_restarts_keep_the_run_whose_heads_agree_best():
    model = HIDDEN["multi-head"]()
    symmetry = discover_symmetry(model, model.example())
    a = gaussian_state(model, 0)
    planted = symmetry.sample(9).restrict(head_factors(symmetry, MatchingProblem(symmetry, a, a)))
    b = change_basis(model, noisy(symmetry.apply(planted, a), 0), 0)
    problem = MatchingProblem(symmetry, a, b)
    (name,) = [n for n in symmetry.groups if head_pairs(problem, n)]
    found = align(symmetry, a, b, WeightMatching(head_similarity="invariant", restarts=8))
    assert torch.equal(found.element.permutations[name], planted.inverse().permutations[name])
    pairs = head_pairs(problem, name)
    assert agreement(problem, pairs, found.element) > agreement(problem, pairs, symmetry.sample(1)) + 1


class Normalised(nn.Module):
    """GroupNorm: a gain stands between the two convolutions. Grouped: both sides of a group lie in one tensor."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm, self.conv2 = nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16), nn.Conv2d(16, 24, 3, groups=4)
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv2(torch.relu(self.norm(self.conv1(x))))).mean((2, 3)))


class TwoReaders(nn.Module):
    """Two layers read one flattened axis: a fixed stretch in two tensors, and nothing is summed between them."""

    def __init__(self):
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(1, 6, 3), nn.Linear(54, 4), nn.Linear(54, 5)

    def forward(self, x):
        x = torch.relu(self.conv(x)).flatten(1)
        return self.one(x), self.two(x)


@pytest.mark.parametrize(("build", "size"), [(Normalised, 8), (TwoReaders, 5)])
def test_what_is_no_pair_of_projections_is_left_to_the_weights(build, size):
    model = build()
    symmetry = discover_symmetry(model, (torch.randn(2, 1, size, size),))
    a, b = gaussian_state(model, 0), gaussian_state(model, 1)
    problem = MatchingProblem(symmetry, a, b)
    assert symmetry.groups
    assert not any(head_pairs(problem, name) for name in symmetry.groups)
    found = align(symmetry, a, b, INVARIANT)
    assert found.element == align(symmetry, a, b).element
    assert any("nothing, no factor has pairs" in note for note in found.notes)


def test_two_matrix_experts_may_be_compared_by_their_product():
    model = Experts()
    symmetry = discover_symmetry(model, model.example())
    a = gaussian_state(model, 0)
    planted = symmetry.sample(1)
    assert align(symmetry, a, symmetry.apply(planted, a), INVARIANT).element == planted.inverse()


def test_unknown_similarity_is_refused():
    with pytest.raises(WorkbenchError, match="head_similarity is 'products'"):
        WeightMatching(head_similarity="products")
