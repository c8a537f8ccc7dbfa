"""The *Symmetries* page without a browser: its state is driven as the widgets drive it, and held against the public functions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from workbench.architectures import ARCHITECTURES, architecture
from workbench.checkpoints import load_checkpoint, save_checkpoint
from workbench.options import parse_options
from workbench.shipped.apps import subject, symmetries_words
from workbench.shipped.apps.jobs import Jobs
from workbench.shipped.apps.settings import Settings
from workbench.shipped.apps.states.compare import CompareState
from workbench.shipped.apps.states.symmetries import EVERYTHING, SymmetriesState
from workbench.symmetry import discover_symmetry


@pytest.fixture
def state(checkpoints):
    jobs = Jobs()
    made = SymmetriesState(jobs, Settings(checkpoints))
    made.source = "small-seed0.safetensors"
    yield made
    jobs.close()
    jobs.wait()


def discovered(state: SymmetriesState) -> SymmetriesState:
    state.discover()
    assert state._jobs.wait()
    assert state.status == "done", state.error or state.message
    return state


def broken(state: SymmetriesState) -> SymmetriesState:
    state.break_it()
    assert state._jobs.wait()
    assert not state.error
    return state


def attributes(change) -> dict:
    return change.outputs["outputs"].attrs


def test_no_panel_behind_the_state():
    code = "import sys; import workbench.shipped.apps.states.symmetries; print([m for m in sys.modules if m == 'panel'])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_it_shows_what_discovery_gives(state, checkpoints):
    discovered(state)
    checkpoint = load_checkpoint(checkpoints / "small-seed0.safetensors")
    expected = discover_symmetry(checkpoint.architecture.build(), checkpoint.architecture.example_inputs())
    shown = state.found.symmetry
    assert dict(shown.groups) == dict(expected.groups)
    assert state.explanation.partition("Proof by test")[0] == expected.explain().partition("Proof by test")[0]
    facts = symmetries_words.facts(state.found)
    assert "10²⁷" in facts  # 16!², log10 = 26.6
    assert "log₁₀ = 26.6; 2 factors" in facts
    table = symmetries_words.factors(state.found)
    assert table.count("<tr>") == 1 + len(expected.groups)
    for pinned in expected.pinned:
        assert f"{pinned.tensor} axis {pinned.axis}" in symmetries_words.pinned(state.found)
    assert "of the model&#x27;s input" in symmetries_words.pinned(state.found)


def test_a_random_element_keeps_the_outputs_and_a_broken_one_does_not(state):
    discovered(state)  # applies the first element by itself
    assert attributes(state.kept)["same"]
    assert attributes(state.kept)["max_abs_change"] < 1e-12 * attributes(state.kept)["scale"]
    assert sum(state.kept.moved.values()) > 0
    assert "The function is the same" in symmetries_words.change(state.found, state.kept)
    broken(state)
    assert not attributes(state.broken)["same"]
    assert attributes(state.broken)["max_abs_change"] > 0.01 * attributes(state.broken)["scale"]
    assert state.broken.alone == "layers.0.weight"  # the largest
    assert "The function is broken" in symmetries_words.change(state.found, state.broken)


def test_scales_signs_and_changes_of_basis_are_shown_and_applied(state):
    state.source = "built-in: transformer"
    state.options = "width=16, heads=4, kv_heads=2, depth=1, hidden=8"
    discovered(state)
    assert not state.has_scalings
    assert symmetries_words.scalings(state.found) == ""
    plain = dict(state.found.symmetry.groups)

    state.scaled = True
    discovered(state)
    symmetry = state.found.symmetry
    assert state.has_scalings
    assert {name: group.size for name, group in symmetry.groups.items()} == {name: group.size for name, group in plain.items()}
    assert symmetry.scale_dimension > 0
    assert {factor.kind for factor in symmetry.linear} == {"general", "rotation-scale"}
    table = symmetries_words.scalings(state.found)
    assert table.count("<tr>") == 1 + len(symmetry.scalings) + len(symmetry.linear)
    assert "rotation and scale of pairs of units" in table
    assert state.found.excess > 1
    assert "Mass / least mass" in symmetries_words.facts(state.found)
    assert state.kept.scales == symmetry.scale_dimension
    assert attributes(state.kept)["same"]
    told = symmetries_words.change(state.found, state.kept)
    assert f"{symmetry.scale_dimension} scales" in told
    assert "changes of basis" in told
    assert "The function is the same" in told


def test_the_headline_counts_ways_only_where_they_are_finitely_many(state):
    state.source, state.options = "built-in: mlp", "width=8, depth=2"
    discovered(state)
    assert "10⁹ ways: one for every order" in symmetries_words.facts(state.found)
    assert "permutations only" not in symmetries_words.facts(state.found)
    state.scaled = True
    discovered(state)
    facts = symmetries_words.facts(state.found)
    assert "10⁹ orders of the units below, each in infinitely many ways: 16 positive numbers may be chosen too." in facts
    assert "log₁₀ = 9.2; 2 factors; permutations only" in facts
    table = symmetries_words.scalings(state.found)
    assert "<td>scale of layers.0</td><td>8</td><td>× s: layers.0.weight, layers.0.bias; ÷ s: layers.1.weight</td>" in table
    state.options = "width=8, depth=2, activation='tanh'"
    discovered(state)
    facts = symmetries_words.facts(state.found)
    assert "each in more ways than one: 16 signs may be chosen too." in facts
    assert "infinitely" not in facts
    assert "Mass / least mass" not in facts  # no scales, so there is nothing to balance
    assert state.found.excess is None


def watched(monkeypatch) -> tuple[list, Callable]:
    """What the page hands to the comparison of outputs, and that comparison."""
    seen, compared = [], SymmetriesState._outputs
    monkeypatch.setattr(SymmetriesState, "_outputs", staticmethod(lambda *given: seen.append(given) or compared(*given)))
    return seen, compared


def test_the_scales_of_an_element_reach_the_weights(state, monkeypatch):
    """The weights that are compared are rescaled, and the verdict notices one tensor that is not."""
    seen, compared = watched(monkeypatch)
    state.source, state.options, state.scaled = "built-in: mlp", "width=8, depth=2", True
    discovered(state)
    ((found, after),) = seen
    assert attributes(state.kept)["same"]
    before = found.subject.state
    for name in ("layers.0.weight", "layers.1.weight", "layers.2.weight"):
        was, became = (weights[name].double().abs().flatten().sort().values for weights in (before, after))
        assert not torch.allclose(was, became, rtol=0.01)  # no order of the units does that
    assert torch.equal(before["layers.2.bias"].double(), after["layers.2.bias"])
    left_behind = {**after, "layers.2.weight": after["layers.2.weight"] * 1.5}
    assert not compared(found, left_behind)["outputs"].attrs["same"]


class TurnedScores(nn.Module):
    """Queries and keys turned by rotary angles: no two units can change places, and pairs of them can be turned and scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(6, 4, bias=False), nn.Linear(6, 4, bias=False)
        angles = torch.outer(torch.arange(32.0), torch.tensor([1.0, 0.1]))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        one, two = x.chunk(2, -1)
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.turned(self.query(x)) @ self.turned(self.key(x)).mT


def test_scalings_without_a_permutation_are_claimed_proved_and_applied(state, monkeypatch):
    torch.manual_seed(0)
    model, inputs = TurnedScores(), torch.randn(8, 5, 6)
    looked_at = subject.Subject(model, model.state_dict(), "scores", "random weights", (inputs[:2],), inputs, "random inputs")
    monkeypatch.setattr(subject, "read", lambda *given: looked_at)
    discovered(state)
    assert not state.movable
    assert "nothing is claimed" in symmetries_words.facts(state.found)

    seen, _ = watched(monkeypatch)
    state.scaled = True
    discovered(state)
    assert not state.found.symmetry.groups
    ((_, after),) = seen
    for name, weight in model.state_dict().items():  # scales and signs leave the rows' directions, a change of basis does not
        assert torch.cosine_similarity(weight.double(), after[name], dim=1).abs().min() < 0.99
    assert (state.movable, state.has_factors, state.has_scalings) == (True, False, True)
    facts = symmetries_words.facts(state.found)
    assert "but 2 positive numbers, 2 signs and 2 changes of basis may be chosen" in facts
    assert "nothing is claimed" not in facts
    assert "3 random elements in float64" in facts
    assert "scale of a fixed axis" in symmetries_words.scalings(state.found)
    assert attributes(state.kept)["same"]
    told = symmetries_words.change(state.found, state.kept)
    assert "no units to move; drawn too: 2 scales, 2 signs, 2 changes of basis" in told
    assert state.tied is None
    assert broken(state).broken is None  # nothing to move alone


def test_the_next_press_draws_the_next_element(state):
    discovered(state)
    assert state.kept.seed == 0
    state.apply_random()
    assert state._jobs.wait()
    assert state.kept.seed == state.seed == 1
    state.seed = 7
    state.apply_random()
    assert state._jobs.wait()
    assert state.kept.seed == 7
    assert "Element of seed 7" in symmetries_words.change(state.found, state.kept)


def test_a_selection_is_explained_and_narrows_what_can_be_broken(state):
    discovered(state)
    everything = len(state.param.tied.objects)
    state.selected = "layers.0"
    assert state.explanation.startswith("layers.0: 16 units")
    assert {factor for factor, _ in state.param.tied.objects.values()} == {"layers.0"}
    assert 1 < len(state.param.tied.objects) < everything
    state.selected = "layers.2.weight"
    assert "axis 0: 10 — " in state.explanation
    assert state.tied == ("layers.1", "layers.2.weight")
    assert not attributes(broken(state).broken)["same"]
    state.selected = "layers.2.bias"  # nothing moves it: all others are offered
    assert len(state.param.tied.objects) == everything
    state.selected = EVERYTHING
    assert "Proof by test" in state.explanation


def test_a_group_without_a_factor_has_no_element_to_apply(state):
    state.source, state.options = "built-in: mlp", "width=1, depth=1"
    discovered(state)
    assert not state.movable
    assert state.kept is None
    state.apply_random()
    state.break_it()
    assert state._jobs.wait()
    assert (state.kept, state.broken, state.acting) == (None, None, False)
    facts = symmetries_words.facts(state.found)
    assert "No permutation of the parameters keeps the function" in facts
    assert "nothing to prove" in facts
    assert symmetries_words.factors(state.found) == ""
    assert "a single entry" in symmetries_words.pinned(state.found)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_a_built_in_opens_with_its_defaults(name, state):
    state.source = subject.BUILT_IN + name
    assert state.has_options
    assert architecture(name, **parse_options(state.options)) == architecture(name)


def test_a_built_in_with_heads(state):
    state.source = "built-in: transformer"
    state.options = "width=16, heads=4, kv_heads=2, depth=1, hidden=8"
    discovered(state)
    groups = state.found.symmetry.groups
    assert [group.copies for group in groups.values() if group.over] == [2, 2]
    assert attributes(state.kept)["same"]
    assert "a copy for each unit of another" in symmetries_words.facts(state.found)
    state.source = "small-seed0.safetensors"
    assert not state.has_options


def test_the_inputs_can_be_those_of_a_task(state):
    state.source, state.options, state.task = "built-in: convnet", "width=4", "digits:flatten=False"
    discovered(state)
    assert state.found.subject.inputs.shape == (subject.EXAMPLES, 1, 8, 8)
    assert "train inputs of digits" in symmetries_words.change(state.found, state.kept)


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("built-in: mlp", "widht=4", "did you mean"),
        ("built-in: mlp", "width", "cannot be read"),
        ("built-in: mlp", "depth=99999999", "numbers up to"),
        ("built-in: mlp", "widths=(64, 9999999)", "numbers up to"),
        ("built-in: mlp", "inputs=4096, width=4096, depth=9", "at most 20,000,000"),
        ("built-in: mlp", "width=" + "(" * 500, "characters long"),
        ("built-in: resnet", "depth=9", "6n+2"),
        ("broken.pt", "", "web page"),
    ],
)
def test_errors_are_texts(state, checkpoints, source, options, words):
    state.param.update(source=source)
    state.options = options
    state.discover()
    assert state._jobs.wait()
    assert state.status == "failed"
    assert words in state.error
    assert str(checkpoints) not in state.error
    assert state.found is None


def test_a_file_that_does_not_say_what_it_is_needs_the_operator(checkpoints, tmp_path):
    torch.save(dict(load_checkpoint(checkpoints / "small-seed0.safetensors").state), tmp_path / "a.pt")
    silent = SymmetriesState(Jobs(), Settings(tmp_path))
    assert silent.source == "a.pt"
    silent.discover()
    silent._jobs.wait()
    assert "The checkpoint does not say which architecture" in silent.error
    told = SymmetriesState(Jobs(), Settings(tmp_path, model="mlp:inputs=64,outputs=10,width=16,depth=2"))
    assert set(discovered(told).found.symmetry.groups) == {"layers.0", "layers.1"}


def test_a_task_whose_files_are_not_here_is_no_obstacle(tmp_path):
    made = architecture("mlp", inputs=784, width=4, depth=1)
    metadata = {"architecture": made.to_json(), "task": "mnist:root='/nowhere/secret'"}
    save_checkpoint(made.build().state_dict(), tmp_path / "mnist.safetensors", metadata=metadata)
    state = discovered(SymmetriesState(Jobs(), Settings(tmp_path)))
    assert state.found.subject.inputs.shape == (subject.EXAMPLES, 784)
    facts = symmetries_words.facts(state.found)
    assert "because the task &#x27;mnist&#x27; cannot be read here" in facts
    assert "secret" not in facts
    assert attributes(state.kept)["same"]
    state.task = "digits:flatten=True"  # asked for by name: then it must fit
    state.discover()
    state._jobs.wait()
    assert state.status == "failed"
    assert "fails on the example inputs" in state.error


@pytest.mark.parametrize("stage", ["Discovering the symmetry: ", "Proving by test: run"])
def test_cancel_stops_and_claims_nothing(state, stage):
    state.source, state.options = "built-in: resnet", "depth=20, channels=1"
    seen = []
    watcher = state.param.watch(lambda event: event.new.startswith(stage) and (seen.append(event.new), state.cancel()), "message")
    state.discover()
    assert state._jobs.wait()
    assert seen
    assert state.status == "stopped"
    assert state.found is None
    state.param.unwatch(watcher)
    state.source = "small-seed0.safetensors"
    discovered(state)


def test_the_pages_of_one_session_do_not_stop_each_other(checkpoints):
    jobs, settings = Jobs(), Settings(checkpoints)
    comparing, looking = CompareState(jobs, settings, points=3), SymmetriesState(jobs, settings)
    comparing.param.update(anchor="small-seed0.safetensors", moving="small-seed1.safetensors")
    looking.source = "small-seed0.safetensors"
    comparing.align()
    looking.discover()
    looking.cancel()
    assert jobs.wait()
    assert looking.status == "stopped"
    assert comparing.status == "done"
    comparing.align()
    looking.discover()
    comparing.cancel()
    assert jobs.wait()
    assert comparing.status == "stopped"
    assert looking.status == "done"


def test_only_listed_files_are_read(state, tmp_path):
    for label in ("../secret.safetensors", "/etc/passwd", "built-in: ../mlp"):
        with pytest.raises(ValueError, match="is called"):
            subject.read(Settings(tmp_path), label, "", "as the checkpoint says")
