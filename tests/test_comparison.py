"""The whole road: consistent figures, JSON, netCDF, and a verdict that tells a fine-tune from a stranger."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import xarray as xr

from workbench.architectures import architecture
from workbench.barriers import barrier
from workbench.checkpoints import shipped_checkpoint
from workbench.comparison import Comparison, compare
from workbench.errors import Cancelled, WorkbenchError
from workbench.matching import Match
from workbench.matching.data import require_data
from workbench.paths import LinearPath
from workbench.profiles import profile_path
from workbench.schema import write_netcdf
from workbench.spectra import singular_alignment
from workbench.stages import Walk
from workbench.states import fingerprint
from workbench.symmetry import discover_symmetry
from workbench.tasks import Task, task
from workbench.training import train


@pytest.fixture(scope="module")
def setting():
    digits = task("digits")
    net = architecture("mlp", inputs=64, outputs=10, width=16, depth=2)
    model = net.build(seed=0)
    states = [c.state for c in train(net, digits, seeds=(0, 1), epochs=20, batch_size=50, optimizer="adam", lr=3e-3)]
    return digits, model, discover_symmetry(model, digits.example_inputs), states


@pytest.fixture(scope="module")
def compared(setting):
    digits, model, symmetry, (a, b) = setting
    return compare(a, b, model, digits, symmetry=symmetry, points=11)


def test_parts_agree_with_each_other(setting, compared):
    digits, model, _, (a, b) = setting
    assert compared.profile["loss"].dims == ("alignment", "split", "t")
    naive = profile_path(LinearPath(a, b), model, digits, points=11)
    aligned = profile_path(LinearPath(a, compared.alignment.aligned), model, digits, points=11)
    for kind, profile in (("naive", naive), ("aligned", aligned)):
        assert np.array_equal(compared.profile["loss"].sel(alignment=kind), profile["loss"])
        for definition in ("linear", "mean", "max", "midpoint", "area"):
            for metric in ("loss", "accuracy"):
                found = compared.barriers[f"{metric}_barrier_{definition}"].sel(alignment=kind)
                assert np.allclose(found, barrier(profile, metric, definition))
    assert np.allclose(compared.profile["loss"].isel(t=-1).diff("alignment"), 0, atol=1e-5), "both paths end in the same function"
    assert compared.alignment.preservation.passed
    assert set(compared.seconds) == {"matching", "profile naive", "profile aligned", "singular vectors"}


def test_layers_say_how_far(compared):
    layers = compared.layers
    total = float(np.sqrt((layers["distance_after"] ** 2).sum()))
    assert total == pytest.approx(compared.alignment.distance_after, rel=1e-6)
    assert float(layers["cosine_after"].sel(tensor="layers.1.weight")) > float(
        layers["cosine_before"].sel(tensor="layers.1.weight")
    )


def test_summary_is_json_and_the_dataset_a_file(compared, tmp_path):
    told = json.loads(json.dumps(compared.summary(), allow_nan=False))
    assert told["verdict"] == compared.verdict
    assert told["barriers"]["loss_barrier_linear"]["aligned"]["train"] < told["barriers"]["loss_barrier_linear"]["naive"]["train"]
    assert told["alignment"]["function_kept"]["passed"] is True
    assert told["spectra"]["R"]["after"]["0.3"] > told["spectra"]["R"]["before"]["0.3"]
    assert set(told["spectra"]) >= {"R", "R_top", "null_R", "null_R_same_k", "null_R_top", "l2_cut", "null_l2_cut"}
    path = write_netcdf(compared.to_dataset(), tmp_path / "comparison.nc")
    with xr.open_dataset(path, engine="h5netcdf") as read:
        assert read.attrs["verdict"] == compared.verdict
        assert np.array_equal(read["loss"], compared.profile["loss"])
        assert read["loss"].attrs["units"] == "nats"
        assert read["loss_barrier_linear"].attrs["definition"].startswith("linear: ")
        assert np.array_equal(read["spectra_R"], compared.spectra["R"])


def test_verdicts(setting):
    digits, model, symmetry, (a, b) = setting

    def verdict(anchor, moving, net=model, group=symmetry, **options):
        return compare(anchor, moving, net, digits, symmetry=group, points=5, spectra=False, **options).verdict

    assert verdict(a, a).startswith("the same weights")
    assert verdict(a, symmetry.apply(symmetry.sample(3), a)).startswith("one solution up to the symmetries")
    generator = torch.Generator().manual_seed(0)
    tuned = {n: t + 0.002 * torch.randn(t.shape, generator=generator) for n, t in a.items()}
    assert verdict(a, tuned).startswith("connected already")
    assert verdict(a, symmetry.apply(symmetry.sample(3), tuned)).startswith("connected after alignment")
    stranger = verdict(a, b, matcher="random")
    assert stranger.startswith("no common basin found")
    assert "train split" in stranger
    assert "1% of accuracy" in stranger
    broken = {n: t * (float("1e38") if n == "layers.2.weight" else 1) for n, t in b.items()}
    assert verdict(a, broken, matcher="identity").startswith("undefined")


def test_nothing_is_mutated_and_symmetry_is_discovered(setting):
    digits, model, _, (a, b) = setting
    before = fingerprint(a), fingerprint(b), fingerprint(model.state_dict()), model.training
    found = compare(a, b, model, digits, points=3, splits=["test"], null=False)
    assert (fingerprint(a), fingerprint(b), fingerprint(model.state_dict()), model.training) == before
    assert isinstance(found, Comparison)
    assert "symmetry" in found.seconds
    assert found.symmetry.proof.passed
    assert "null_R" not in found.spectra


def test_stages_report_in_turn_and_can_be_cancelled(setting):
    digits, model, symmetry, (a, b) = setting
    stages = []
    compare(a, b, model, digits, symmetry=symmetry, points=3, progress=lambda step: stages.append(step.stage))
    assert list(dict.fromkeys(stages)) == [
        "matching",
        "profile naive",
        "profile aligned",
        "singular vectors",
        "singular vectors: matching",
    ]
    for stage in dict.fromkeys(stages):

        def stop(step, stage=stage):
            if step.stage == stage:
                raise Cancelled

        with pytest.raises(Cancelled):
            compare(a, b, model, digits, symmetry=symmetry, points=3, progress=stop)


@dataclass(frozen=True)
class SeesData:
    """A matcher of the test: it leaves every unit where it is, and writes down which data it was handed."""

    needs: str
    seen: list = field(default_factory=list)

    def match(self, problem, *, seed=0, progress=None):
        data = require_data(problem.data, "SeesData", labels=self.needs == "labels")
        self.seen.append((data.model, data.task, data.split, data.size, problem.start))
        element = problem.symmetry.identity()
        return Match(element, problem.objective(element), data_used=data.words())


@pytest.mark.parametrize("needs", ["inputs", "labels"])
def test_a_matcher_that_looks_at_data_gets_the_model_and_the_task(setting, needs):
    digits, model, symmetry, (a, b) = setting
    chosen = SeesData(needs)
    found = compare(a, b, model, digits, symmetry=symmetry, matcher=chosen, points=3, splits=["test"])
    assert found.alignment.data_used == "1400 examples of digits/train"
    pair, null = chosen.seen  # the unrelated networks are matched on the same data
    assert pair == null == (model, digits, "train", 1400, None)
    assert "null_R" in found.spectra
    assert found.alignment.preservation.examples == 256
    # the control: without them the spectra say what is missing
    with pytest.raises(WorkbenchError, match="called without data"):
        singular_alignment(a, b, symmetry=symmetry, matcher=chosen)


def test_a_comparison_goes_on_from_an_alignment(setting, compared):
    digits, model, symmetry, (a, b) = setting
    chosen = SeesData("inputs")
    options = {"symmetry": symmetry, "points": 3, "spectra": False}
    compare(a, b, model, digits, matcher=chosen, start=compared.alignment, **options)
    assert chosen.seen[0][4] == compared.alignment.element
    again = compare(a, b, model, digits, start=compared.alignment, **options)
    assert again.alignment.history[0].objective == pytest.approx(compared.alignment.objective)
    assert compare(a, b, model, digits, **options).alignment.history[0].objective < again.alignment.history[0].objective


def test_no_split_is_refused(setting):
    digits, model, symmetry, (a, b) = setting
    with pytest.raises(WorkbenchError, match="No split"):
        compare(a, b, model, digits, symmetry=symmetry, splits=[])


@pytest.mark.parametrize("wrong", ["anchor", "moving", "model", "task"])
@pytest.mark.parametrize("given", [None, "a.pt", 3, shipped_checkpoint("digits-mlp-w8-seed0"), {"layers.0.weight": np.zeros(3)}])
def test_things_of_another_kind_are_named(wrong, given):
    checkpoint = shipped_checkpoint("digits-mlp-w8-seed0")
    right = {
        "anchor": checkpoint.state,
        "moving": checkpoint.state,
        "model": checkpoint.architecture.build(),
        "task": task("digits"),
    }
    with pytest.raises(WorkbenchError, match="Expected"):
        compare(**{**right, wrong: given}, points=3, null=False)


def test_the_verdict_claims_no_removal_of_a_barrier_that_is_not_there():
    """Inputs that are all equal: the loss does not rise on either line, and only the accuracy may jump."""
    a, b = (shipped_checkpoint(f"digits-mlp-w8-seed{seed}") for seed in (0, 1))
    model = a.architecture.build()
    flat = Task("flat", {"train": (torch.zeros(5, 64), torch.zeros(5, 10))}, loss="mse")
    zeros = {name: torch.zeros_like(tensor) for name, tensor in a.state.items()}
    same_function = {**zeros, "layers.0.weight": b.state["layers.0.weight"]}
    found = compare(zeros, same_function, model, flat, splits=None, points=3, null=False, spectra=False)
    assert found.verdict.startswith("connected already")


def test_a_walk_gives_what_compare_gives_one_stage_at_a_time(setting, compared):
    digits, model, symmetry, (a, b) = setting
    walk, seen = Walk(a, b, model, digits, points=11), []
    while walk.stage is not None:
        seen.append(walk.stage)
        before, walk = walk, walk.advance()
        assert list(walk.seconds) == seen
        assert list(before.seconds) == seen[:-1]  # what was there is left alone
    assert seen == ["symmetry", "matching", "profile naive", "profile aligned", "singular vectors"]
    assert walk.advance() is walk
    found = Comparison.of_walk(walk)
    assert found.verdict == compared.verdict
    assert np.array_equal(found.profile["loss"], compared.profile["loss"])
    assert walk.symmetry.groups == symmetry.groups
    # what is given is not done again
    later = Walk(a, b, model, digits, symmetry=symmetry, alignment=walk.alignment, profiles=walk.profiles, with_spectra=False)
    assert later.stage is None
    assert Walk(a, b, model, digits, symmetry=symmetry, profiles={"naive": walk.profiles["naive"]}).stage == "matching"


def test_a_walk_can_be_cancelled_in_discovery_already(setting):
    digits, model, _, (a, b) = setting

    def stop(step):
        assert step.stage == "discovering symmetry"
        raise Cancelled

    with pytest.raises(Cancelled):
        Walk(a, b, model, digits).advance(stop)
    with pytest.raises(Cancelled):
        compare(a, b, model, digits, progress=stop)
