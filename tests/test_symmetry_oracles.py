"""Discovered groups against hand-written specifications (Git Re-Basin, arXiv 2209.04836, and its released code).

The specifications below are oracles of the tests; the product has none.
"""

from __future__ import annotations

import math

import pytest
import torch

from workbench.architectures import architecture
from workbench.symmetry import PermutationSpec, discover_symmetry


def log10_factorials(sizes) -> float:
    return sum(math.lgamma(n + 1) for n in sizes) / math.log(10)


def mlp_spec(layers: int) -> dict:
    spec = {}
    for i in range(layers):
        spec[f"layers.{i}.weight"] = (f"P{i}" if i < layers - 1 else None, f"P{i - 1}" if i else None)
        spec[f"layers.{i}.bias"] = (f"P{i}" if i < layers - 1 else None,)
    return spec


def by_role(state, roles) -> dict:
    """axes_to_perm from a function tensor name -> (name of axis 0, name of axis 1)."""
    spec = {}
    for name, tensor in state.items():
        out, inner = roles(name)
        spec[name] = ((out, inner) + (None,) * tensor.dim())[: tensor.dim()]
    return spec


def resnet_spec(state) -> dict:
    """12 names: three streams S0–S2 and one inner name per block."""

    def roles(name):
        if name.startswith(("stem", "norm")):
            return "S0", None
        if name.startswith("head"):
            return None, "S2"
        _, stage, block, part = name.split(".")[:4]
        before = f"S{int(stage) - 1}" if block == "0" and stage != "0" else f"S{stage}"
        return {
            "conv1": (f"I{stage}.{block}", before),
            "norm1": (f"I{stage}.{block}", None),
            "conv2": (f"S{stage}", f"I{stage}.{block}"),
            "norm2": (f"S{stage}", None),
            "shortcut": (f"S{stage}", before),
        }[part]

    return by_role(state, roles)


def vgg_spec(state) -> dict:
    """15 names: a chain of 13 convolutions and two dense layers; norms and biases move with their layer."""

    def roles(name):
        part, number = name.split(".")[:2]
        layer = int(number) + (13 if part == "dense" else 0)
        return f"P{layer}" if layer < 15 else None, f"P{layer - 1}" if layer else None

    return by_role(state, roles)


def partition(axes_to_perm: dict) -> set:
    """The groups as sets of (tensor, axis), whatever they are called."""
    return {frozenset(axes) for axes in PermutationSpec(axes_to_perm).perm_to_axes.values()}


CASES = {
    "mlp": (("mlp", {"inputs": 784, "outputs": 10, "width": 512, "depth": 3}), (2, 784), lambda s: mlp_spec(4), 3499.6, 3),
    "vgg16": (("vgg", {}), (2, 3, 32, 32), vgg_spec, 11462.5, 15),
    "resnet20": (("resnet", {"depth": 20, "width": 1, "norm": "layer"}), (2, 3, 32, 32), resnet_spec, 551.4, 12),
}


@pytest.mark.parametrize("case", CASES)
def test_discovered_group_equals_the_hand_written_one(case):
    (name, options), shape, spec, log10_order, names = CASES[case]
    model = architecture(name, **options).build(seed=0)
    symmetry = discover_symmetry(model, (torch.randn(shape),))
    assert symmetry.proof.passed
    assert not symmetry.unknown_ops
    assert partition(symmetry.to_permutation_spec().axes_to_perm) == partition(spec(model.state_dict()))
    assert len(symmetry.groups) == names
    assert symmetry.log10_order() == pytest.approx(log10_order, abs=0.05)
    assert symmetry.log10_order() == pytest.approx(log10_factorials(g.size for g in symmetry.groups.values()))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_other_norms_give_the_same_resnet_group(norm):
    model = architecture("resnet", depth=20, norm=norm).build(seed=0)
    symmetry = discover_symmetry(model, (torch.randn(2, 3, 32, 32),))
    assert symmetry.log10_order() == pytest.approx(551.4, abs=0.05)
    assert not any("num_batches_tracked" in member.tensor for group in symmetry.groups.values() for member in group.members)
    if norm == "batch":
        assert {"norm.running_mean", "norm.running_var"} <= {m.tensor for m in symmetry.groups["stem"].members}


WRONG = {
    "mlp": lambda spec: spec | {"layers.1.weight": ("P1", None)},
    "resnet20": lambda spec: spec | {"stages.1.0.shortcut.0.weight": ("S1", None, None, None)},
    "vgg16": lambda spec: spec | {"norms.4.weight": (None,)},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_deliberately_wrong_specification_fails_the_check(case):
    (name, options), shape, spec, *_ = CASES[case]
    if name != "resnet":
        options = options | {"width": 8}
    model = architecture(name, **options).build(seed=0)
    state = model.state_dict()
    right = PermutationSpec(spec(state)).to_symmetry(state)
    wrong = PermutationSpec(WRONG[case](spec(state))).to_symmetry(state)
    inputs = (torch.randn(shape),)
    assert right.check(model, inputs, samples=1).passed
    verdict = wrong.check(model, inputs, samples=1)
    assert not verdict.passed
    assert verdict.max_relative_error > 1e-6
