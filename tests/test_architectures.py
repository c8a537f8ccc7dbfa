"""Architectures: shapes, initial weights that only the seed decides, and options that survive JSON."""

import math
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from workbench.architectures import ARCHITECTURES, Architecture, OutsideModel, architecture, resolve_model
from workbench.architectures.initial import initialise
from workbench.architectures.layers import ChannelLayerNorm
from workbench.errors import WorkbenchError
from workbench.states import fingerprint
from workbench.symmetry import discover_symmetry

CASES = [
    ("mlp", {"width": 8}, (3, 64)),
    ("mlp", {"widths": (4, 6), "inputs": 9, "outputs": 5, "activation": "tanh"}, (2, 1, 3, 3)),
    ("convnet", {}, (3, 1, 8, 8)),
    ("convnet", {"norm": "group", "channels": 3, "size": 32, "width": 4}, (2, 3, 32, 32)),
    ("vgg", {"width": 2}, (2, 3, 32, 32)),
    ("vgg", {"width": 2, "depth": 11, "size": 64, "norm": "batch"}, (2, 3, 64, 64)),
    ("resnet", {"depth": 8}, (2, 3, 32, 32)),
    ("resnet", {"depth": 20, "width": 2, "norm": "batch"}, (2, 3, 16, 16)),
    ("resnet", {"depth": 14, "norm": "group"}, (2, 3, 32, 32)),
    ("transformer", {}, (3, 64)),
    ("transformer", {"heads": 6, "kv_heads": 1, "width": 24, "depth": 1, "positions": "learned"}, (2, 1, 8, 8)),
]


@pytest.mark.parametrize(("name", "options", "shape"), CASES, ids=lambda value: str(value)[:40])
def test_builds_and_survives_json(name, options, shape):
    built = architecture(name, **options)
    again = Architecture.from_json(built.to_json())
    assert again == built
    assert hash(again) == hash(built)
    model = built.build(seed=0)
    outputs = model(torch.zeros(shape))
    assert outputs.shape == (shape[0], built.options["outputs"])
    assert sum(p.numel() for p in model.parameters()) == built.parameters()
    assert f"{built.parameters():,}" in built.describe()
    assert all(p.device.type == "cpu" and p.requires_grad for p in model.parameters())


def test_every_registered_architecture_is_in_the_cases():
    assert set(ARCHITECTURES) == {name for name, _, _ in CASES}


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_only_the_seed_decides_the_initial_weights(name):
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = fingerprint(architecture(name).build(seed=3).state_dict())
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(12)
    assert fingerprint(architecture(name).build(seed=3).state_dict()) == first
    assert fingerprint(architecture(name).build(seed=4).state_dict()) != first
    assert fingerprint(architecture(name).build().state_dict()) == fingerprint(architecture(name).build(seed=0).state_dict())


def test_threads_build_the_same_weights():
    found = []

    def build():
        found.append(fingerprint(architecture("convnet").build(5).state_dict()))

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4


def test_initial_weights_are_lecun_normal():
    state = architecture("mlp", inputs=400, width=300).build(0).state_dict()
    for name, fan_in in (("layers.0.weight", 400), ("layers.1.weight", 300)):
        assert state[name].std() * fan_in**0.5 == pytest.approx(1, abs=0.02)
        assert state[name.replace("weight", "bias")].abs().max() == 0
    conv = architecture("vgg", width=32).build(0).convs[3].weight.detach()
    assert conv.std() * conv[0].numel() ** 0.5 == pytest.approx(1, abs=0.02)
    norm = architecture("convnet").build(0).norms[0]
    assert [norm.weight.unique().item(), norm.bias.unique().item(), norm.running_mean.unique().item()] == [1, 0, 0]
    assert norm.running_var.unique().item() == 1
    assert norm.num_batches_tracked == 0


def test_a_module_that_cannot_be_initialised_is_refused():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))

    with pytest.raises(WorkbenchError, match=r"gain of .*initialise\(generator\)"):
        initialise(Odd(), 0)


def test_channel_layer_norm_treats_channels_alike():
    norm = ChannelLayerNorm(6)
    x = torch.randn(2, 6, 3, 3, generator=torch.Generator().manual_seed(0))
    y = norm(x)
    assert torch.allclose(y.mean(1), torch.zeros(2, 3, 3), atol=1e-6)
    order = torch.tensor([3, 1, 0, 2, 5, 4])
    assert torch.allclose(norm(x[:, order]), y[:, order], atol=1e-6)
    whole = nn.LayerNorm([6, 3, 3])  # the control: over C, H, W it is another network
    assert not torch.allclose(whole(x), y, atol=1e-2)


def test_resnet_shortcuts_are_convolutions_only_where_the_shape_changes():
    stages = architecture("resnet", depth=20).build().stages
    kinds = [[type(block.shortcut).__name__ for block in stage] for stage in stages]
    assert kinds == [["Identity"] * 3, ["Sequential", "Identity", "Identity"], ["Sequential", "Identity", "Identity"]]


def test_convnet_takes_flat_rows():
    model = architecture("convnet").build(0).eval()
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(x), model(x.flatten(1)))


@pytest.mark.parametrize(
    ("text", "name", "option"),
    [
        ("mlp", "mlp", ("width", 256)),
        ("mlp:width=64,depth=3", "mlp", ("depth", 3)),
        ("mlp(widths=(3,4))", "mlp", ("widths", (3, 4))),
        ("resnet:norm=group, depth=8", "resnet", ("norm", "group")),
    ],
)
def test_one_line_of_text_names_a_model(text, name, option):
    found = resolve_model(text)
    assert found.name == name
    assert found.options[option[0]] == option[1]


def test_outside_models_are_built_and_named(tmp_path, monkeypatch):
    (tmp_path / "their_nets.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(3, 2)\ndef wrong():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "their_nets", raising=False)
    outside = resolve_model("their_nets:make")
    assert isinstance(outside, OutsideModel)
    state = torch.get_rng_state()
    assert torch.equal(outside.build(1).weight, outside.build(1).weight)
    assert not torch.equal(outside.build(1).weight, outside.build(2).weight)
    assert torch.equal(state, torch.get_rng_state())
    assert outside.describe() == "their_nets:make: 8 parameters"
    with pytest.raises(WorkbenchError, match=r"gave a int.*torch\.nn\.Module"):
        resolve_model("their_nets:wrong").build()
    with pytest.raises(WorkbenchError, match="did you mean 'make'"):
        resolve_model("their_nets:mak")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mpl", "did you mean 'mlp'"),
        ("mlp:wdth=3", "did you mean 'width'"),
        ("mlp:width", "key=value"),
        ("no_such_package.nets:make", "cannot be imported"),
        ("mlp:width=wide", "whole numbers"),
        ("mlp:activation=rellu", "did you mean 'relu'"),
        ("resnet:depth=21", "6n"),
        ("resnet:norm=btach", "did you mean 'batch'"),
        ("vgg:size=28", "multiple of 32"),
        ("convnet:size=6", "multiple of 4"),
        ("convnet:width=0", "without any entry"),
        ("resnet:width=x", "cannot be built"),
    ],
)
def test_bad_requests_say_what_to_do(text, message):
    with pytest.raises(WorkbenchError, match=message):
        resolve_model(text).build()


def test_meta_building_warns_of_nothing():
    code = (
        "from workbench.architectures import architecture; architecture('convnet').build(); architecture('resnet', depth=8).build()"
    )
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


def test_the_transformer_has_the_group_of_its_heads():
    """S_width for the stream; per block S_hidden, the kv heads, the query heads and the value units inside each of them."""
    built = architecture("transformer", width=24, heads=4, kv_heads=2, hidden=10, depth=1)
    model, inputs = built.build(), built.example_inputs()
    found = discover_symmetry(model, inputs)
    factorial = [math.lgamma(n + 1) / math.log(10) for n in range(25)]
    # rotary tables tell the units inside query and key heads apart; the value heads are free: S_2 ≀, S_6 in each
    expected = factorial[24] + factorial[10] + factorial[2] + 2 * (factorial[2] + factorial[6])
    assert found.log10_order() == pytest.approx(expected)
    learned = architecture("transformer", width=24, heads=4, kv_heads=2, hidden=10, depth=1, positions="learned")
    more = discover_symmetry(learned.build(), learned.example_inputs())
    assert more.log10_order() == pytest.approx(expected + 2 * factorial[6])
    assert not found.unknown_ops
    assert not more.unknown_ops


@pytest.mark.parametrize("options", [{"tokens": 7}, {"heads": 3}, {"kv_heads": 3}, {"heads": 0}, {"positions": "sine"}])
def test_sizes_of_a_transformer_must_go_together(options):
    with pytest.raises(WorkbenchError, match="asked for"):
        architecture("transformer", **options).build()


@pytest.mark.parametrize(("name", "options", "shape"), CASES, ids=lambda value: str(value)[:40])
def test_example_inputs_fit(name, options, shape):
    built = architecture(name, **options)
    (inputs,) = built.example_inputs(count=3, seed=1)
    assert built.build()(inputs).shape == (3, built.options["outputs"])
    assert not torch.equal(inputs, built.example_inputs(count=3, seed=2)[0])
