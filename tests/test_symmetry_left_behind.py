"""The proof leaves every leaf of a factor behind once: needed, dead, or not tested, and it says which."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.symmetry import Symmetry, discover_symmetry, proof
from workbench.symmetry.occurrences import occurrences

X = torch.randn(2, 5, 6)


class Attention(nn.Module):
    """Two heads of 4 on a stream of 8; queries, keys and values packed in one projection, or in three."""

    def __init__(self, *, packed: bool, bias: bool) -> None:
        super().__init__()
        self.read, self.out, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        if packed:
            self.qkv = nn.Linear(8, 24, bias=bias)
        else:
            self.q, self.k, self.v = (nn.Linear(8, 8, bias=bias) for _ in range(3))

    def forward(self, x):
        x = self.read(x)
        parts = self.qkv(x).chunk(3, -1) if hasattr(self, "qkv") else (self.q(x), self.k(x), self.v(x))
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in parts)
        y = (q @ k.mT / 2).softmax(-1) @ v
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))


def leaves(found: Symmetry) -> int:
    """All places at which a factor stands, of the factors that stand at more than one."""
    return sum(len(places) for places in occurrences(found).values() if len(places) > 1)


def factor_on(found: Symmetry, tensor: str, span: tuple[int, int]) -> str:
    """The factor of 4 in rows span of ``tensor``: the inside of the heads of that part."""
    (name,) = {
        leaf.factor
        for places in occurrences(found).values()
        for leaf in places
        if leaf.tensor == tensor and leaf.axis == 0 and (leaf.start, leaf.stop) == span and found.groups[leaf.factor].size == 4
    }
    return name


@pytest.mark.parametrize("packed", [True, False])
def test_every_leaf_is_needed_where_there_is_no_bias(packed):
    found = discover_symmetry(Attention(packed=packed, bias=False), (X,))
    assert (found.proof.needed, found.proof.dead, found.proof.dead_parts, found.proof.untested) == (leaves(found), (), (), 0)


def test_the_inside_of_packed_queries_and_keys_is_tested_though_it_stands_in_one_tensor():
    found = discover_symmetry(Attention(packed=True, bias=False), (X,))
    inside = factor_on(found, "qkv.weight", (0, 8))
    assert factor_on(found, "qkv.weight", (8, 16)) == inside
    assert {member.tensor for member in found.groups[inside].members} == {"qkv.weight"}
    assert [(leaf.start, leaf.stop) for leaf in occurrences(found)[inside]] == [(0, 8), (8, 16)]


def test_the_key_part_of_a_packed_bias_is_dead_and_no_other_part():
    """Adding one number to all scores of a query changes no softmax: neither the heads nor their inside have to move there."""
    found = discover_symmetry(Attention(packed=True, bias=True), (X,))
    inside = factor_on(found, "qkv.bias", (8, 16))
    heads = next(outer for outer in found.groups[inside].over)
    assert set(found.proof.dead_parts) == {(inside, "qkv.bias", 0, 8, 16), (heads, "qkv.bias", 0, 8, 16)}
    assert found.proof.dead == ()
    assert found.proof.needed + len(found.proof.dead_parts) == leaves(found)
    assert "qkv.bias axis 0, 8…15" in found.explain()


def test_a_key_bias_of_its_own_is_dead_as_a_whole():
    found = discover_symmetry(Attention(packed=False, bias=True), (X,))
    assert {tensor for _, tensor in found.proof.dead} == {"k.bias"}
    assert found.proof.dead_parts == ()
    assert found.proof.needed + len(found.proof.dead) == leaves(found)


def test_what_costs_too_much_is_counted_and_nothing_is_said_of_it(monkeypatch):
    monkeypatch.setattr(proof, "_LEAVE_ONE_OUT_BUDGET", 200)
    found = discover_symmetry(Attention(packed=True, bias=True), (X,))
    told = found.proof.needed + len(found.proof.dead) + len(found.proof.dead_parts)
    assert found.proof.untested > 0
    assert told > 0
    assert told + found.proof.untested == leaves(found)
    assert "not left behind" in found.explain()


def test_the_verdict_survives_saving(tmp_path):
    found = discover_symmetry(Attention(packed=True, bias=True), (X,))
    assert Symmetry.load(found.save(tmp_path / "symmetry.json")).proof == found.proof


def test_verdicts_saved_before_parts_were_told_are_read():
    old = {"max_relative_error": 0.0, "per_group": {}, "passed": True, "dead": [["a", "b"]], "untested": 2, "shapes": ["2×5"]}
    verdict = proof.SymmetryCheck.from_json(old)
    assert verdict.dead == (("a", "b"),)
    assert verdict.dead_parts == ()
