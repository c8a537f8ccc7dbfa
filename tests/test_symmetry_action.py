"""What elements do to outputs, the broken ones too, and the rows that say which factor touches which axis."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from workbench.architectures import architecture
from workbench.errors import WorkbenchError
from workbench.states import fingerprint
from workbench.symmetry import discover_symmetry
from workbench.symmetry.action import compare_outputs, move_alone, one_mover
from workbench.symmetry.incidence import tensor_axes

X = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))


class Tied(nn.Module):
    """Two layers under three names: ``first`` and ``again`` share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False), nn.Linear(5, 2)
        self.again.weight = self.first.weight
        self.wide = nn.Linear(5, 2)
        self.out = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = torch.relu(self.again(torch.relu(self.first(x))))
        return {"logits": self.head(y), "more": self.out(torch.relu(self.wide(x))).unflatten(1, (1, 3))}


def test_an_element_keeps_the_outputs_and_a_lone_move_does_not():
    model = architecture("mlp", inputs=5, outputs=3, width=6, depth=2).build(seed=1)
    symmetry = discover_symmetry(model, (X,))
    state, before = model.state_dict(), fingerprint(model.state_dict())
    element = symmetry.sample(seed=3)
    kept = compare_outputs(model, state, symmetry.apply(element, state), X)["outputs"]
    assert kept.dims == ("weights", "example", "output")
    assert kept.shape == (2, 7, 3)
    assert kept.attrs["same"]
    assert kept.attrs["max_abs_change"] < 1e-13
    model.eval()
    assert torch.allclose(torch.from_numpy(kept.sel(weights="before").to_numpy()).float(), model(X), atol=1e-6)
    for name, group in symmetry.groups.items():
        for tensor in {member.tensor for member in group.members} - {"layers.0.bias", "layers.1.bias"}:  # those are all zero
            moved = move_alone(symmetry, one_mover(symmetry, name, seed=3), state, tensor)
            broken = compare_outputs(model, state, moved, X)["outputs"].attrs
            assert not broken["same"]
            assert broken["max_abs_change"] > 1e-2
            changed = [n for n in state if not torch.equal(moved[n], state[n])]
            assert changed == [tensor]
    assert fingerprint(model.state_dict()) == before


def test_a_change_of_nothing_is_exactly_nothing():
    model = architecture("convnet", width=4).build()
    state = model.state_dict()
    (inputs,) = architecture("convnet", width=4).example_inputs(3)
    assert compare_outputs(model, state, dict(state), inputs)["outputs"].attrs["max_abs_change"] == 0.0


def test_tied_names_move_together_and_several_outputs_are_one_row():
    model = Tied()
    symmetry = discover_symmetry(model, (X,))
    assert symmetry.aliases == {"again.weight": "first.weight"}
    state = model.state_dict()
    found = compare_outputs(model, state, symmetry.apply(symmetry.sample(1), state), X)["outputs"]
    assert found.shape == (2, 7, 2 + 3)
    assert found.attrs["same"]
    (name,) = symmetry.groups  # the two units of ``wide``
    moved = move_alone(symmetry, one_mover(symmetry, name, 0), state, "wide.weight")
    assert not compare_outputs(model, state, moved, X)["outputs"].attrs["same"]
    assert moved["again.weight"] is moved["first.weight"]


def test_a_mover_of_two_units_always_moves_them():
    symmetry = discover_symmetry(Tied(), (X,))
    (name,) = symmetry.groups
    drawn = [symmetry.sample(seed).is_identity for seed in range(20)]
    assert any(drawn)  # chance alone gives the identity half of the time
    assert all(one_mover(symmetry, name, seed).units_moved()[name] == 2 for seed in range(20))


def test_outputs_that_disagree_on_the_examples_lie_in_one_row():
    class Odd(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x), self.weight.sum()

    model = Odd(5, 3)
    assert compare_outputs(model, model.state_dict(), model.state_dict(), X)["outputs"].shape == (2, 1, 22)


def test_unknown_names_are_named():
    model = architecture("mlp", inputs=5, outputs=3, width=6, depth=1).build()
    symmetry = discover_symmetry(model, (X,))
    with pytest.raises(WorkbenchError, match=r"did you mean 'layers\.0'"):
        one_mover(symmetry, "layer.0", 0)
    with pytest.raises(WorkbenchError, match="No tensor is called 'head'"):
        move_alone(symmetry, symmetry.identity(), model.state_dict(), "head")


def test_every_axis_has_a_row_with_its_factors_or_a_reason():
    built = architecture("transformer", width=16, heads=4, kv_heads=2, hidden=8, depth=1)
    symmetry = discover_symmetry(built.build(), built.example_inputs())
    rows = tensor_axes(symmetry)
    assert [(row.tensor, row.axis) for row in rows] == [
        (name, axis) for name, entry in symmetry.tensors.items() for axis in range(len(entry.shape))
    ]
    assert all(row.factors or row.reason for row in rows)
    at = {(row.tensor, row.axis): row for row in rows}
    for name, group in symmetry.groups.items():
        assert {(m.tensor, m.axis) for m in group.members} == {place for place, row in at.items() if name in row.factors}
    for pinned in symmetry.pinned:
        assert at[pinned.tensor, pinned.axis].reason == pinned.reason
    query = at["blocks.0.attention.query.weight", 0]
    assert len(query.factors) == 2  # key/value heads, query heads inside them; the units inside are pinned by the rotation
    assert "rotation" in query.reason
    tied = discover_symmetry(Tied(), (X,))
    assert "again.weight" not in {row.tensor for row in tensor_axes(tied)}


def test_what_nothing_uses_says_so():
    class Idle(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 3)
            self.idle = nn.Parameter(torch.zeros(4))

    rows = {row.tensor: row for row in tensor_axes(discover_symmetry(Idle(), (X,)))}
    assert rows["idle"].reason == "the forward pass does not use this tensor"
    assert rows["idle"].role == "unused"


class Branches(nn.Module):
    """Three experts of one kind, summed: whole experts may change places."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 2)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return sum(expert(x) for expert in self.experts)


def test_whole_branches_have_a_row_and_cannot_be_moved_by_halves():
    model = Branches()
    symmetry = discover_symmetry(model, (X,))
    rows = tensor_axes(symmetry)
    whole = [row for row in rows if row.axis is None]
    assert {row.tensor for row in whole} == {name for stack in symmetry.stacks for name in stack.names}
    (branch,) = {name for row in whole for name in row.factors}
    assert symmetry.groups[branch].size == 3
    assert {row.size for row in whole} == {3}
    state = model.state_dict()
    element = one_mover(symmetry, branch, 0)
    kept = compare_outputs(model, state, symmetry.apply(element, state), X)["outputs"].attrs
    assert kept["same"]
    moved = move_alone(symmetry, element, state, "experts.0.0.weight")
    assert not torch.equal(moved["experts.0.0.weight"], state["experts.0.0.weight"])
    assert not compare_outputs(model, state, moved, X)["outputs"].attrs["same"]
    assert f"as a whole: {branch}, changes places with experts.1.0.weight" in symmetry.explain("experts.0.0.weight")


def test_a_fixed_coordinate_is_said_in_words():
    class Sloped(nn.Module):
        """Heads that a fixed slope tells apart: the units inside each of them may still be reordered."""

        def __init__(self) -> None:
            super().__init__()
            self.value, self.out = nn.Linear(5, 12), nn.Linear(12, 3)
            self.register_buffer("slope", torch.tensor([1.0, 2.0, 4.0]), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            heads = self.value(x).unflatten(-1, (3, 4)) * self.slope[:, None]
            return self.out(torch.relu(heads).flatten(1))

    symmetry = discover_symmetry(Sloped(), (X,))
    (name,) = symmetry.groups
    assert symmetry.groups[name].copies == 3
    assert symmetry.explain(name).startswith(f"{name}: 4 units, one copy for each value of a fixed axis")
    at = {(row.tensor, row.axis): row for row in tensor_axes(symmetry)}
    assert at["value.weight", 0].layout == f"3 × {name}"
    assert at["value.weight", 0].factors == (name,)
    assert "slope" in at["value.weight", 0].reason
    assert "=" not in symmetry.explain()
