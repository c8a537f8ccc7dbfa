"""The *Compare* page without a browser: its state is driven as the widgets drive it, and held against the public functions."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from workbench.barriers import barrier
from workbench.checkpoints import load_checkpoint
from workbench.comparison import compare
from workbench.errors import WorkbenchError
from workbench.shipped.apps import catalogue, compare_words, road
from workbench.shipped.apps.jobs import Jobs
from workbench.shipped.apps.server import settings_for
from workbench.shipped.apps.settings import Settings
from workbench.shipped.apps.states.compare import CompareState
from workbench.tasks import task


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def state(checkpoints):
    jobs = Jobs()
    made = CompareState(jobs, Settings(checkpoints))
    made.points = 5
    made.param.update(anchor="small-seed0.safetensors", moving="small-seed1.safetensors")
    yield made
    jobs.close()
    jobs.wait()


def finished(state: CompareState) -> CompareState:
    state.align()
    assert state._jobs.wait()
    assert state.status == "done", state.error or state.message
    return state


def test_no_panel_behind_the_state():
    code = "import sys; import workbench.shipped.apps.states.compare; print([m for m in sys.modules if m.split('.')[0] == 'panel'])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_road_gives_what_compare_gives(state, checkpoints):
    finished(state)
    first, second = (load_checkpoint(checkpoints / f"small-seed{i}.safetensors") for i in (0, 1))
    expected = compare(first.state, second.state, first.architecture.build(), task("digits"), points=5)
    shown = state.found.comparison
    assert shown.verdict == expected.verdict
    assert shown.alignment.element == expected.alignment.element
    np.testing.assert_allclose(shown.profile["loss"], expected.profile["loss"])
    np.testing.assert_allclose(shown.spectra["R"], expected.spectra["R"])
    for name in ("naive", "aligned"):
        np.testing.assert_allclose(state.barriers[name]["loss"], barrier(expected.profile.sel(alignment=name)))
    assert json.dumps(shown.summary())


def test_curves_fill_in_and_end_complete(state):
    counts = []
    state.param.watch(lambda event: event.new is not None and counts.append(int(event.new["measured"].sum())), "profile")
    finished(state)
    assert counts == sorted(counts)
    assert state.profile["measured"].sel(alignment=["naive", "aligned"]).all()
    assert not state.profile["measured"].sel(alignment="partial").any()


def test_the_barrier_falls_factor_by_factor(state):
    finished(state)
    assert list(state.steps) == ["none (naive)", "all (aligned)"]
    state.factors = ["layers.0"]
    assert state._jobs.wait()
    assert list(state.steps) == ["none (naive)", "layers.0", "all (aligned)"]
    assert state.profile["measured"].sel(alignment="partial").all()
    found = state.found
    assert state._parts.path(("layers.0", "layers.1"))(1.0)["layers.1.weight"].equal(
        found.alignment.aligned["layers.1.weight"]
    )
    assert state._parts.path(())(1.0)["layers.1.weight"].equal(found.loaded.moving["layers.1.weight"])
    state.factors = ["layers.0", "layers.1"]
    assert state._jobs.wait()
    assert not state.profile["measured"].sel(alignment="partial").any()


def test_one_after_another_ends_with_all(state):
    finished(state)
    state.one_by_one()
    assert state._jobs.wait()
    assert state.factors == ["layers.0", "layers.1"]
    assert "layers.0" in state.steps


def test_the_slider_shows_the_last_t(state):
    finished(state)
    for t in np.linspace(0.0, 1.0, 30):
        state.t = round(float(t), 2)
    assert state._jobs.wait()
    t, found = state.at
    assert t == 1.0
    assert set(found) == {"naive", "aligned"}
    np.testing.assert_allclose(found["naive"]["loss"].isel(t=0), state.profile["loss"].sel(alignment="naive", t=1.0), rtol=1e-6)


def test_another_pair_replaces_everything(state):
    finished(state)
    state.factors = ["layers.0"]
    state._jobs.wait()
    state.param.update(anchor="shipped: digits-mlp-w8-seed0", moving="shipped: digits-mlp-w8-seed1")
    finished(state)
    assert list(state.steps) == ["none (naive)", "all (aligned)"]
    assert state.found.choice.anchor == "shipped: digits-mlp-w8-seed0"
    assert state.at[1]["naive"]["loss"].sel(split="train").item() == pytest.approx(
        state.found.profiles["naive"]["loss"].sel(split="train", t=0.5).item(), rel=1e-6
    )


def test_a_cancelled_matching_keeps_its_best_and_can_go_on(state):
    state.param.update(anchor="wide-seed0.safetensors", moving="wide-seed1.safetensors", points=3)
    seen = threading.Event()
    state.param.watch(lambda event: event.new.startswith("Matching: sweep") and (seen.set(), state.cancel()), "message")
    state.align()
    assert state._jobs.wait()
    assert seen.is_set()
    assert state.status == "stopped"
    assert "best alignment found so far is kept" in state.message
    assert state.found.alignment.cancelled
    assert not state.found.profiles
    assert "best so far, not converged" in compare_words.facts(state.found, state.barriers)
    kept = state.found.alignment
    state.resume()
    assert state._jobs.wait()
    assert state.status == "done"
    assert state.found.alignment is kept


def test_a_cancelled_curve_keeps_its_points(state):
    state.points = 201
    state.param.watch(lambda event: event.new is not None and state._jobs.cancel("road"), "profile")
    state.align()
    assert state._jobs.wait()
    assert state.status == "stopped"
    assert "keep the points measured so far" in state.message
    measured = state.profile["measured"]
    assert 0 < int(measured.sum()) < 402
    half = [str(name) for name in measured["alignment"].values if not bool(measured.sel(alignment=name).all())]
    assert half
    assert not set(half) & set(state.barriers)  # no barrier from half a curve


@pytest.mark.parametrize(
    ("anchor", "moving", "words"),
    [
        ("small-seed0.safetensors", "other-width.safetensors", "different architectures"),
        ("broken.pt", "small-seed0.safetensors", "web page"),
    ],
)
def test_errors_are_texts(state, checkpoints, anchor, moving, words):
    state.param.update(anchor=anchor, moving=moving)
    state.align()
    assert state._jobs.wait()
    assert state.status == "failed"
    assert words in state.error
    assert str(checkpoints) not in state.error


def test_a_checkpoint_that_does_not_say_what_it_is_needs_the_operator(checkpoints, tmp_path):
    state = dict(load_checkpoint(checkpoints / "small-seed0.safetensors").state)
    for name in ("a.pt", "b.pt"):
        torch.save(state, tmp_path / name)
    choice = road.Choice("a.pt", "b.pt")
    with pytest.raises(WorkbenchError, match="which architecture"):
        road.load(Settings(tmp_path), choice)
    loaded = road.load(Settings(tmp_path, model="mlp:inputs=64,outputs=10,width=16,depth=2"), choice)
    assert loaded.task.name == "digits"


def test_two_sessions_do_not_touch_each_other(checkpoints):
    states = [CompareState(Jobs(), Settings(checkpoints), points=5) for _ in range(2)]
    for state, name in zip(states, ("small-seed", "shipped: digits-mlp-w16-seed"), strict=True):
        end = ".safetensors" if "small" in name else ""
        state.param.update(anchor=f"{name}0{end}", moving=f"{name}1{end}")
        state.align()
    for state in states:
        assert state._jobs.wait()
        assert state.status == "done"
    assert states[0].found.comparison.verdict != states[1].found.comparison.verdict
    assert states[0].param.anchor is not states[1].param.anchor


def test_only_listed_files_are_read(checkpoints, tmp_path):
    outside = tmp_path / "secret.safetensors"
    outside.write_bytes((checkpoints / "small-seed0.safetensors").read_bytes())
    inside = tmp_path / "offered"
    inside.mkdir()
    (inside / "link.safetensors").symlink_to(outside)
    (inside / ".hidden.pt").write_bytes(b"x")
    settings = Settings(inside)
    assert [label for label in catalogue.checkpoints(settings) if not label.startswith("shipped")] == []
    for label in ("../secret.safetensors", str(outside), "link.safetensors"):
        with pytest.raises(WorkbenchError, match="No checkpoint is called"):
            catalogue.read_checkpoint(settings, label)
    assert catalogue.read_checkpoint(Settings(checkpoints), "small-seed0.safetensors").state


def test_tasks_from_files_need_the_operators_folder(tmp_path):
    assert not any("mnist" in label for label in catalogue.tasks(Settings()))
    assert any("mnist" in label for label in catalogue.tasks(Settings(data=tmp_path)))
    # a path in a checkpoint's metadata is not followed
    with pytest.raises(WorkbenchError, match=str(tmp_path)):
        catalogue.read_task(Settings(data=tmp_path), catalogue.AS_CHECKPOINT_SAYS, "mnist:root='/etc'")


def test_a_missing_folder_is_refused_at_the_door(tmp_path):
    with pytest.raises(WorkbenchError, match="is not a folder"):
        settings_for(tmp_path / "nowhere", None, None)
