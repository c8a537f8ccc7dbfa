"""Several alignments of one pair on the *Compare* page, without a browser."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from bokeh.document import Document
from pyviz_comms import Comm

from workbench.checkpoints import load_checkpoint, save_checkpoint
from workbench.comparison import compare
from workbench.matching.fields import make_matcher
from workbench.plots.style import OTHER_COLOURS
from workbench.shipped.apps import alignment_words, shelf
from workbench.shipped.apps.jobs import Jobs
from workbench.shipped.apps.keeping import NONE, OWN_START
from workbench.shipped.apps.pages.compare import CompareView
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


def aligned(state: CompareState, matcher: str, **values: object) -> CompareState:
    state.matcher = matcher
    state.form.values.param.update(**values)
    state.align()
    assert state._jobs.wait()
    assert state.status == "done", state.error or state.message
    return state


def curves(state: CompareState) -> list[str]:
    measured = state.profile["measured"]
    return [str(name) for name in measured["alignment"].to_numpy() if bool(measured.sel(alignment=name).any())]


def shown(state: CompareState, label: str) -> None:
    state.shown = label
    assert state._jobs.wait()


def test_alignments_of_a_pair_are_kept_and_lie_beside_each_other(state, checkpoints):
    aligned(state, "weights")
    assert (state.shown, state.overlaid) == ("1 · weights", ["1 · weights"])
    assert curves(state) == ["naive", "aligned"]
    aligned(state, "spectral", rank="2")
    assert state.shown == "2 · spectral"
    assert curves(state) == ["naive", "aligned", "1 · weights"]
    first, second = (load_checkpoint(checkpoints / f"small-seed{i}.safetensors") for i in (0, 1))
    for label, matcher in (("1 · weights", "weights"), ("aligned", make_matcher("spectral", {"rank": 2}))):
        expected = compare(first.state, second.state, first.architecture.build(), task("digits"), points=5, matcher=matcher)
        np.testing.assert_allclose(state.profile["loss"].sel(alignment=label), expected.profile["loss"].sel(alignment="aligned"))
    np.testing.assert_allclose(state.profile["loss"].sel(alignment="naive"), expected.profile["loss"].sel(alignment="naive"))
    # the second needed neither the symmetry nor the naive curve again
    assert "symmetry" not in state.found.seconds
    assert "profile naive" not in state.found.seconds
    state.overlaid = []
    assert curves(state) == ["naive", "aligned"]


def test_the_table_says_what_each_of_them_is(state):
    state.param.update(anchor="shipped: digits-mlp-w8-seed0", moving="shipped: digits-mlp-w8-seed1")
    aligned(state, "weights")
    aligned(state, "activations", examples="300")
    one, two = state.lines
    spectra = state.found.spectra.sel(stage="after")
    assert two.barriers["train"] == float(state.barriers["aligned"]["loss"].sel(split="train"))
    assert two.naive == one.naive
    assert two.figures["R(.5)"] == (float(spectra["R_total"].sel(gamma=0.5)), float(spectra["null_R_total"].sel(gamma=0.5)))
    assert two.figures["R top-8"] == (float(spectra["R_top_total"].sel(top=8)), float(spectra["null_R_top_total"].sel(top=8)))
    assert two.figures["L2 cut"] == (state.found.alignment.l2_cut, float(spectra["null_l2_cut"]))
    assert (one.data, two.data) == ("no data used", "300 examples of digits/train")
    assert two.settings == "examples=300, 5 points"
    assert one.kept_function
    text = alignment_words.table(state.lines, state.shown, "linear")
    for words in ("1 · weights", "2 · activations", "examples=300", "300 examples of digits/train", "naive", "“linear”"):
        assert words in text
    before = one.barriers["train"]
    state.definition = "max"
    assert state.lines[0].barriers["train"] != before
    report = alignment_words.summary(state.lines)["alignments of this pair"]
    assert report["2 · activations"]["data"] == "300 examples of digits/train"
    assert alignment_words.summary(state.lines[:1]) == {}


def test_another_one_can_be_shown_and_removed(state):
    aligned(state, "weights")
    first = state.found
    state.factors = ["layers.0"]
    assert state._jobs.wait()
    aligned(state, "spectral", rank="2")
    second = state.found
    shown(state, "1 · weights")
    assert state.found is first
    assert state.status == "done"
    assert curves(state) == ["naive", "aligned", "2 · spectral"]
    assert "layers.0" in state.steps  # what was measured of it is still there
    assert state.factors == ["layers.0", "layers.1"]
    state.shown = NONE  # nothing to show there
    assert state.shown == "1 · weights"
    shown(state, "2 · spectral")
    assert (state.found, "layers.0" in state.steps) == (second, False)
    state.remove()
    assert state._jobs.wait()
    assert (state.shown, state.found) == ("1 · weights", first)
    assert curves(state) == ["naive", "aligned"]
    state.remove()
    assert (state.shown, state.found, state.profile, state.lines, state.status) == (NONE, None, None, (), "idle")
    # numbers are not given twice
    aligned(state, "identity")
    assert state.shown == "3 · identity"


def test_another_pair_clears_them_and_so_does_a_changed_file(state, checkpoints, tmp_path):
    aligned(state, "weights")
    aligned(state, "identity")
    state.param.update(anchor="shipped: digits-mlp-w8-seed0", moving="shipped: digits-mlp-w8-seed1")
    aligned(state, "weights")
    assert [item.label for item in state.kept] == ["1 · weights"]
    assert curves(state) == ["naive", "aligned"]
    for seed in (0, 1):
        shutil.copy(checkpoints / f"small-seed{seed}.safetensors", tmp_path / f"own-seed{seed}.safetensors")
    own = CompareState(Jobs(), Settings(tmp_path), points=5)
    aligned(own, "weights")
    before = own.found.loaded.identity
    other = load_checkpoint(tmp_path / "own-seed1.safetensors")
    changed = {name: 2 * tensor for name, tensor in other.state.items()}
    save_checkpoint(changed, tmp_path / "own-seed1.safetensors", metadata=other.metadata)
    aligned(own, "identity")
    assert own.found.loaded.identity != before
    assert [item.label for item in own.kept] == ["2 · identity"]
    assert "symmetry" in own.found.seconds


def test_curves_on_other_grids_lie_beside_each_other(state):
    aligned(state, "weights")
    state.points = 7
    aligned(state, "identity")
    measured = state.profile["measured"]
    assert int(measured.sel(alignment="1 · weights").sum()) == 5
    assert int(measured.sel(alignment="aligned").sum()) == 7
    assert np.isfinite(state.profile["loss"].where(measured).sel(alignment="1 · weights").to_numpy()).sum() == 10
    assert "profile naive" in state.found.seconds


def test_a_matcher_goes_on_from_an_alignment_that_is_kept(state):
    aligned(state, "weights", max_sweeps="1")
    first = state.found.alignment
    state.start = "1 · weights"
    aligned(state, "annealed")
    assert state.found.choice.start == "1 · weights"
    assert "from 1 · weights" in state.lines[1].settings
    aligned(state, "weights", max_sweeps="100")
    assert state.found.alignment.history[0].objective == pytest.approx(first.objective)
    state.shown = "1 · weights"
    state.remove()
    assert state.start == OWN_START


def test_a_stopped_matching_is_kept_and_can_be_started_from(state):
    state.param.update(anchor="wide-seed0.safetensors", moving="wide-seed1.safetensors", points=3)
    watcher = state.param.watch(lambda event: event.new.startswith("Matching: sweep") and state.cancel(), "message")
    state.align()
    assert state._jobs.wait()
    state.param.unwatch(watcher)
    assert state.status == "stopped"
    assert state.shown == "1 · weights"
    (line,) = state.lines
    assert line.ended == "stopped, best so far"
    assert line.barriers == {}
    assert "—" in alignment_words.table(state.lines, state.shown, "linear")
    aligned(state, "identity")
    shown(state, "1 · weights")
    assert state.can_resume
    state.resume()
    assert state._jobs.wait()
    assert state.status == "done"
    assert [item.label for item in state.kept] == ["1 · weights", "2 · identity"]
    assert set(state.lines[0].barriers) == {"train", "test"}


def test_a_stopped_matching_beside_a_finished_one_is_not_called_finished(state):
    """The naive curve is known from the first alignment: that must not look like the end of the second."""
    state.param.update(anchor="wide-seed0.safetensors", moving="wide-seed1.safetensors", points=3)
    aligned(state, "identity")
    state.matcher = "weights"
    watcher = state.param.watch(lambda event: event.new.startswith("Matching: sweep") and state.cancel(), "message")
    state.align()
    assert state._jobs.wait()
    state.param.unwatch(watcher)
    assert (state.status, state.can_resume) == ("stopped", True)
    assert "best alignment found so far is kept" in state.message
    state.resume()
    assert state._jobs.wait()
    assert state.status == "done"
    assert "aligned" in curves(state)


def test_wrong_values_start_nothing_and_lose_nothing(state):
    aligned(state, "weights")
    found = state.found
    state.matcher = "spectral"
    state.form.values.rank = "many"
    state.align()
    assert state.status == "done"
    assert state.found is found
    assert "rank is 'many'" in state.error
    state.matcher = "weights"
    state.matcher = "spectral"
    assert state.form.values.rank == "many"


def test_only_so_many_are_kept(state):
    for _ in range(shelf.MOST):
        aligned(state, "identity")
    assert len({line.slot for line in state.lines}) == shelf.MOST == len(OTHER_COLOURS)
    state.align()
    assert "remove one" in state.error
    assert len(state.kept) == shelf.MOST
    state.remove()
    aligned(state, "random")
    assert len({line.slot for line in state.lines}) == shelf.MOST


def test_the_widgets_choose_nothing_by_themselves(state):
    """A list whose options change falls back to its first one, and would tell the state so."""
    view = CompareView(state)
    roots = [part.get_root(Document(), Comm()) for part in (*view.sidebar(), *view.main())]
    assert roots
    for number, matcher in enumerate(("weights", "identity", "random"), start=1):
        aligned(state, matcher)
        assert state.shown == f"{number} · {matcher}"
        assert state.found.choice.matcher == matcher
        assert state.overlaid == [item.label for item in state.kept]
    state.start = "2 · identity"
    shown(state, "2 · identity")
    assert state.found.choice.matcher == "identity"
    state.remove()
    assert state._jobs.wait()
    assert (state.shown, state.found.choice.matcher, state.start) == ("3 · random", "random", OWN_START)
    assert state.overlaid == ["1 · weights", "3 · random"]
