"""Checkpoints: every kind of file people really have is read, or refused by name; no code in a file ever runs."""

import argparse
import datetime
import json
import os
import pathlib
import random
import threading
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from workbench.architectures import architecture
from workbench.checkpoints import fit_to_model, load_checkpoint, match_names, save_checkpoint
from workbench.errors import WorkbenchError
from workbench.states import fingerprint


@pytest.fixture
def model():
    return architecture("convnet", width=2).build(0)


@pytest.fixture
def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first, second):
    return fingerprint(first) == fingerprint(second)


# --- kinds of file -------------------------------------------------------------------------------------------------------


def test_kind_is_told_by_content_and_not_by_extension(tmp_path, state):
    save_file(state, tmp_path / "safetensors.pt")
    torch.save(state, tmp_path / "zip.safetensors")
    torch.save(state, tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.save(OrderedDict(state), tmp_path / "noextension")
    for path in tmp_path.iterdir():
        read = load_checkpoint(path)
        assert same(read.state, state), path
        assert read.source == str(path)
        assert read.notes == ()


@pytest.mark.parametrize("start", [b"\x80\x02", b"\x1f\x8b"])
def test_the_length_of_a_safetensors_header_is_not_taken_for_another_kind(tmp_path, start):
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.ljust(int.from_bytes(start, "little"))
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert load_checkpoint(tmp_path / "a").state["w"].tolist() == [0, 0]


def test_parameters_lose_their_gradient_flag(tmp_path, model):
    torch.save(dict(model.named_parameters()), tmp_path / "a.pt")
    assert not any(tensor.requires_grad for tensor in load_checkpoint(tmp_path / "a.pt").state.values())


def test_cuda_tensors_come_to_the_cpu(tmp_path, state):
    torch.save(state, tmp_path / "cpu.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "cpu.pt").read_bytes()
    moved = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:3")
    assert moved != content
    (tmp_path / "cuda.pt").write_bytes(moved)
    read = load_checkpoint(tmp_path / "cuda.pt")
    assert same(read.state, state)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123456789\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (POINTER, r"git-lfs pointer.*123,456,789 expected.*git lfs pull"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
        (b"\n  <html lang=en>", "web page"),
        (b"GGUF\x03\x00\x00\x00" + bytes(64), "GGUF"),
        (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5"),
        (b"\x1f\x8b\x08" + bytes(64), "gzip"),
        (bytes(257) + b"ustar" + bytes(250), "tar archive"),
        (b"hello there", "no known kind"),
        (b"PK\x03\x04" + bytes(200), "truncated"),
        (b"\x80\x02", "damaged|cannot be read"),
    ],
)
@pytest.mark.parametrize("name", ["a.safetensors", "a.pt"])
def test_what_is_not_weights_is_named(tmp_path, content, message, name):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WorkbenchError, match=message) as caught:
        load_checkpoint(tmp_path / name)
    assert "weights_only" not in str(caught.value)


def test_half_a_file_is_called_truncated(tmp_path, state):
    torch.save(state, tmp_path / "a.pt")
    save_file(state, tmp_path / "a.safetensors")
    for name in ("a.pt", "a.safetensors"):
        whole = (tmp_path / name).read_bytes()
        for share in (0.3, 0.5, 0.98):
            (tmp_path / "half").write_bytes(whole[: int(len(whole) * share)])
            with pytest.raises(WorkbenchError, match="truncated"):
                load_checkpoint(tmp_path / "half")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "old.pt").read_bytes()
    (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WorkbenchError, match=r"damaged|cannot be read") as caught:
        load_checkpoint(tmp_path / "half")
    assert "weights_only" not in str(caught.value)


def test_one_changed_byte_is_noticed(tmp_path, state):
    torch.save(state, tmp_path / "a.pt")
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[content.index(state["head.weight"].numpy().tobytes()[:16])] ^= 1
    (tmp_path / "b.pt").write_bytes(content)
    assert not same(torch.load(tmp_path / "b.pt"), state)  # torch itself reads it without a word
    with pytest.raises(WorkbenchError, match=r"is damaged.*bytes changed"):
        load_checkpoint(tmp_path / "b.pt")


@pytest.mark.parametrize("write", ["zip", "legacy", "safetensors"])
def test_no_damage_ends_in_anything_but_a_named_error(tmp_path, write):
    """Files cut short anywhere and with bytes changed anywhere load, or are refused in words."""
    small = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.zeros(2)}
    path = tmp_path / "a"
    if write == "safetensors":
        save_file(small, path)
    else:
        torch.save(small, path, _use_new_zipfile_serialization=write == "zip")
    whole = path.read_bytes()
    choose = random.Random(0)
    damaged = [whole[: choose.randrange(len(whole))] for _ in range(60)]
    for _ in range(200):
        content = bytearray(whole)
        content[choose.randrange(len(whole))] = choose.randrange(256)
        damaged.append(bytes(content))
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            load_checkpoint(path)
        except WorkbenchError:
            refused += 1
    assert refused > 60


def test_a_missing_file_lists_its_neighbours(tmp_path, state):
    torch.save(state, tmp_path / "there.pt")
    with pytest.raises(WorkbenchError, match=r"no file or folder.*there\.pt"):
        load_checkpoint(tmp_path / "not_there.pt")


# --- pickles -------------------------------------------------------------------------------------------------------------


class Hostile:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return (os.system, (self.command,))


@pytest.mark.parametrize("new", [True, False])
def test_code_in_a_file_never_runs(tmp_path, state, new):
    trap = tmp_path / "trap"
    path = tmp_path / "a.bin"
    torch.save({"state_dict": state, "extra": Hostile(f"touch {trap}")}, path, _use_new_zipfile_serialization=new)
    with pytest.raises(WorkbenchError, match=r"asks to run posix\.system") as caught:
        load_checkpoint(path)
    assert "weights_only" not in str(caught.value)
    assert not trap.exists()
    torch.load(path, weights_only=False)  # the control: the trap is a real one
    assert trap.exists()


@pytest.mark.parametrize("new", [True, False])
def test_harmless_things_beside_the_weights_are_left_out(tmp_path, state, new):
    beside = {
        "best": np.float64(0.5),
        "history": np.arange(4.0),
        "args": argparse.Namespace(lr=0.1, out=pathlib.Path("x")),
        "when": datetime.datetime(2024, 5, 1),
        "epoch": 3,
    }
    allowed = set(torch.serialization.get_safe_globals())
    torch.save({"state_dict": state, **beside}, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    read = load_checkpoint(tmp_path / "a.pt")
    assert same(read.state, state)
    assert any("argparse.Namespace" in note for note in read.notes)
    assert "read from 'state_dict'" in read.notes
    assert set(torch.serialization.get_safe_globals()) == allowed  # nothing stays allowed afterwards


def test_a_whole_pickled_model_says_how_to_save_it_again(tmp_path):
    torch.save(nn.Linear(3, 2), tmp_path / "a.pt")
    with pytest.raises(WorkbenchError, match=r"whole pickled model.*torch\.nn\.modules\.linear\.Linear.*model\.state_dict\(\)"):
        load_checkpoint(tmp_path / "a.pt")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_named(tmp_path):
    torch.jit.save(torch.jit.trace(nn.Linear(3, 2), torch.zeros(1, 3)), tmp_path / "a.pt")
    with pytest.raises(WorkbenchError, match="TorchScript"):
        load_checkpoint(tmp_path / "a.pt")


def test_other_zip_files_are_named(tmp_path):
    np.savez(tmp_path / "a.pt", x=np.zeros(3))
    with pytest.raises(WorkbenchError, match=r"zip archive of x\.npy"):
        load_checkpoint(next(tmp_path.iterdir()))


# --- structure and names -------------------------------------------------------------------------------------------------


def test_several_sets_of_weights_ask_for_a_choice(tmp_path, state):
    ema = {name: tensor + 1 for name, tensor in state.items()}
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]}
    torch.save({"model": state, "ema": {"shadow": ema}, "optimizer": optimizer, "epoch": 3}, tmp_path / "a.pt")
    with pytest.raises(WorkbenchError, match=r"2 sets of weights \(model: 20 tensors with [\d,]+ values; ema/shadow: 20 tensors"):
        load_checkpoint(tmp_path / "a.pt")
    assert same(load_checkpoint(tmp_path / "a.pt", key="model").state, state)
    for key in ("ema/shadow", "ema.shadow"):
        chosen = load_checkpoint(tmp_path / "a.pt", key=key)
        assert same(chosen.state, ema)
        assert chosen.metadata["key"] == key
    with pytest.raises(WorkbenchError, match=r"no weights under 'emma'.*ema/shadow"):
        load_checkpoint(tmp_path / "a.pt", key="emma")


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: f"_orig_mod.module.{name}",
        lambda name: f"_fsdp_wrapped_module.{name.replace('.', '._fsdp_wrapped_module.', 1)}",
        lambda name: name.replace("convs.", "convs._checkpoint_wrapped_module.").replace("norms.", "norms._orig_mod."),
        lambda name: f"_forward_module.module.{name}",
        lambda name: f"model.{name}",
    ],
)
def test_wrappers_are_taken_off_the_names(tmp_path, state, model, rename):
    save_file({rename(name): tensor for name, tensor in state.items()}, tmp_path / "a.safetensors")
    read = load_checkpoint(tmp_path / "a.safetensors")
    assert sorted(read.state) == sorted(state)
    assert read.notes
    assert same(fit_to_model(read, model), state)


def test_a_prefix_that_only_some_names_have_stays(tmp_path, state):
    mixed = {f"module.{name}" if name.startswith("head") else name: tensor for name, tensor in state.items()}
    save_file(mixed, tmp_path / "a.safetensors")
    assert set(load_checkpoint(tmp_path / "a.safetensors").state) == set(mixed)


def test_names_that_would_collide_stay(tmp_path):
    both = {"a._orig_mod.w": torch.zeros(2), "a.w": torch.ones(2)}
    save_file(both, tmp_path / "a.safetensors")
    read = load_checkpoint(tmp_path / "a.safetensors")
    assert set(read.state) == set(both)
    assert "share a name" in read.notes[-1]


def test_what_is_not_a_tensor_is_listed(tmp_path, state):
    torch.save({**state, "epoch": 3, "lr": 0.1}, tmp_path / "a.pt")
    read = load_checkpoint(tmp_path / "a.pt")
    assert same(read.state, state)
    assert read.notes == ("left out, not tensors: epoch, lr",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"epoch": 3}, "holds no weights: it is a mapping with epoch"),
        ([torch.zeros(3)], "holds no weights: it is a list"),
        ({"step": torch.tensor(3)}, "holds no weights"),
        ({"q.lora_A.weight": torch.zeros(4, 8), "q.lora_B.weight": torch.zeros(8, 4)}, r"adapter.*2 of its 2 tensors"),
        (
            {
                "l.qweight": torch.zeros(4, 4, dtype=torch.int32),
                "l.scales": torch.ones(4),
                "l.qzeros": torch.zeros(4, dtype=torch.int32),
            },
            "quantised weights",
        ),
        ({"l.weight": torch.zeros(16, 1, dtype=torch.uint8), "l.bias": torch.zeros(4)}, r"quantised weights.*torch\.uint8"),
        (
            lambda: {"l.weight": torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)},
            r"quantised weights.*torch\.qint8",
        ),
        ({"l.weight": torch.zeros(4, 4).to(torch.float8_e4m3fn)}, "float8"),
        ({"l.weight": torch.eye(3).to_sparse(), "b": torch.zeros(3)}, "sparse"),
        ({"l.weight": torch.zeros(3, 3, device="meta"), "b": torch.zeros(3)}, "without values: 1 of its 2 tensors"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_matched_as_weights_is_refused(tmp_path, content, message):
    torch.save(content() if callable(content) else content, tmp_path / "a.pt")
    with pytest.raises(WorkbenchError, match=message):
        load_checkpoint(tmp_path / "a.pt")


# --- folders -------------------------------------------------------------------------------------------------------------


def write_shards(folder, state, write):
    names = list(state)
    parts = {"model-00001-of-00002": names[:5], "model-00002-of-00002": names[5:]}
    index = {"weight_map": {}}
    for shard, chosen in parts.items():
        write({name: state[name] for name in chosen}, folder / f"{shard}.bin")
        index["weight_map"] |= dict.fromkeys(chosen, f"{shard}.bin")
    (folder / "model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("write", [save_file, torch.save], ids=["safetensors", "torch"])
def test_shards_are_put_together(tmp_path, state, write):
    write_shards(tmp_path, state, write)
    assert same(load_checkpoint(tmp_path).state, state)
    assert same(load_checkpoint(tmp_path / "model.bin.index.json").state, state)
    (tmp_path / "model-00002-of-00002.bin").unlink()
    with pytest.raises(WorkbenchError, match=r"1 of 2 shards are missing.*00002"):
        load_checkpoint(tmp_path)


def test_an_index_cannot_reach_outside_its_folder(tmp_path, state):
    save_file(state, tmp_path / "secret.safetensors")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(WorkbenchError, match="outside its folder"):
        load_checkpoint(inner)


def test_shards_of_different_saves_are_noticed(tmp_path, state):
    write_shards(tmp_path, state, save_file)
    index = json.loads((tmp_path / "model.bin.index.json").read_text())
    index["weight_map"]["more.weight"] = "model-00001-of-00002.bin"
    (tmp_path / "model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(WorkbenchError, match=r"in no shard \(more\.weight\)"):
        load_checkpoint(tmp_path)


def test_a_folder_with_one_file_or_with_several(tmp_path, state):
    save_file(state, tmp_path / "model.safetensors")
    torch.save({}, tmp_path / "optimizer.pt")
    assert same(load_checkpoint(tmp_path).state, state)
    (tmp_path / "model.safetensors").rename(tmp_path / "one.safetensors")
    save_file(state, tmp_path / "two.safetensors")
    with pytest.raises(WorkbenchError, match=r"one\.safetensors, two\.safetensors"):
        load_checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(WorkbenchError, match="adapter"):
        load_checkpoint(tmp_path)


# --- fitting a model -----------------------------------------------------------------------------------------------------


def test_fit_counts_what_matched(state, model):
    assert same(fit_to_model(state, model), state)
    with pytest.raises(WorkbenchError, match="no tensor found its place"):
        fit_to_model({f"x{name}": tensor for name, tensor in state.items()}, model)
    partial = {name: tensor for name, tensor in state.items() if not name.startswith("head")}
    with pytest.raises(WorkbenchError, match=r"18 matched, 2 missing \(head\.weight, head\.bias\), 0 unexpected"):
        fit_to_model(partial, model)
    with pytest.raises(WorkbenchError, match=r"1 unexpected \(more\.weight\)"):
        fit_to_model({**state, "more.weight": torch.zeros(3)}, model)
    with pytest.raises(WorkbenchError, match=r"1 of another shape \(head\.bias \(20,\) in the file, \(10,\) in the model\)"):
        fit_to_model({**state, "head.bias": torch.zeros(20)}, model)


@pytest.mark.parametrize("root", ["model.", "bert.", "net.inner."])
def test_a_root_that_one_side_has_is_bridged(state, model, root):
    longer = {root + name: tensor for name, tensor in state.items()}
    assert same(fit_to_model(longer, model), state)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

    fitted = fit_to_model(state, Wrapped())
    assert set(fitted) == {f"model.{name}" for name in state}
    assert match_names(state, Wrapped()).notes == ("'model.' put before the names",)


def test_integer_buffers_never_stand_in_the_way(state, model):
    old = {name: tensor for name, tensor in state.items() if "num_batches" not in name}
    fitted = fit_to_model({**old, "position_ids": torch.arange(3)}, model)
    assert set(fitted) == set(state)
    assert "position_ids" in match_names({**old, "position_ids": torch.arange(3)}, model).notes[-1]


def test_fitting_leaves_checkpoint_and_model_alone(tmp_path, state, model):
    save_file(state, tmp_path / "a.safetensors")
    read = load_checkpoint(tmp_path / "a.safetensors")
    other = architecture("convnet", width=2).build(1)
    before = fingerprint(read.state), fingerprint(other.state_dict())
    fitted = fit_to_model(read, other)
    other.load_state_dict(fitted)
    other.convs[0].weight.data.zero_()
    assert fingerprint(read.state) == before[0]
    assert fingerprint(other.state_dict()) != before[1]


# --- writing -------------------------------------------------------------------------------------------------------------


def test_saving_and_loading_is_the_identity(tmp_path):
    big = torch.arange(24.0).reshape(4, 6)
    state = {
        "transposed": big.T,
        "sliced": big[1:3, ::2],
        "tied": big,
        "tied_again": big,
        "half": torch.ones(3, dtype=torch.bfloat16),
        "count": torch.tensor(7),
        "empty": torch.zeros(0, 3),
    }
    built = architecture("mlp", width=4)
    path = save_checkpoint(
        state, tmp_path / "deep" / "a.safetensors", metadata={"architecture": built.to_json(), "recipe": {"lr": 0.1}}
    )
    read = load_checkpoint(path)
    assert same(read.state, state)
    assert read.state["tied"].data_ptr() == read.state["tied_again"].data_ptr()
    assert read.architecture == built
    assert read.recipe == {"lr": 0.1}
    assert "ties" not in read.metadata
    from safetensors.torch import load_file

    assert set(load_file(path)) == set(state) - {"tied_again"}  # anybody's reader opens it
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


def test_equal_contents_give_equal_bytes(tmp_path, state):
    metadata = {chr(97 + i): str(i) for i in range(12)}
    first = save_checkpoint(state, tmp_path / "a", metadata=metadata).read_bytes()
    second = save_checkpoint(state, tmp_path / "b", metadata=dict(reversed(metadata.items()))).read_bytes()
    assert first == second
    assert save_checkpoint(state, tmp_path / "c", metadata={**metadata, "a": "x"}).read_bytes() != first


def test_a_failed_save_leaves_the_old_file(tmp_path, state, monkeypatch):
    path = save_checkpoint(state, tmp_path / "a.safetensors")
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("workbench.checkpoints.saving.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint({"a": torch.zeros(3)}, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    monkeypatch.undo()
    with pytest.raises(WorkbenchError, match="a tensor under every name"):
        save_checkpoint({"a": 3}, path)


def test_threads_may_read_at_once(tmp_path, state):
    torch.save({"state_dict": state, "args": argparse.Namespace(a=1)}, tmp_path / "a.pt")
    found, failed = [], []

    def read():
        try:
            found.append(fingerprint(load_checkpoint(tmp_path / "a.pt").state))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert set(found) == {fingerprint(state)}
