"""The command line: answers on the standard output, exit codes, and no traceback for a user's mistake."""

import json
import os
import signal
import socket
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch
import xarray as xr

from workbench.checkpoints import load_checkpoint, save_checkpoint, shipped_checkpoint
from workbench.cli import COMMANDS, console, main
from workbench.errors import Cancelled
from workbench.progress import Reporter

PAIR = ("digits-mlp-w16-seed0", "digits-mlp-w16-seed1")


@pytest.fixture
def call(capsys):
    """Run one command in this process: exit code, standard output, error stream."""

    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def answer(call, *words):
    code, out, err = call(*words, "--json")
    assert code == 0, err
    return json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not strict JSON"))


def outside(page: str) -> list[str]:
    """Addresses a browser would ask for when it opens ``page`` (text inside scripts is no address)."""
    found = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.extend(value for name, value in attrs if name in {"src", "href"} and "//" in (value or ""))

    Tags().feed(page)
    return found


# -- compare, the main road


def test_compare_on_the_shipped_wide_pair(call):
    """No arguments: the figures of two digits networks of width 256 (ranges from three pairs trained elsewhere)."""
    found = answer(call, "compare", "--no-null")
    assert found["alignment"]["function_kept"]["passed"]
    assert found["alignment"]["function_kept"]["max_abs_change"] < 1e-5
    naive, aligned = (found["barriers"]["loss_barrier_linear"][name]["train"] for name in ("naive", "aligned"))
    assert 0.1 < naive < 0.6
    assert 0 <= aligned < 0.03


def test_compare_leaves_a_report_the_numbers_and_the_aligned_checkpoint(call, tmp_path):
    out = tmp_path / "result"
    found = answer(call, "compare", *PAIR, "--points", "5", "--out", out)
    assert json.loads((out / "comparison.json").read_text()) == found
    with xr.open_dataset(out / "comparison.nc", engine="h5netcdf") as numbers:
        assert numbers.sizes["t"] == 5
    report = (out / "report.html").read_text()
    assert "Bokeh" in report
    assert outside(report) == [], "the report must open without a network"
    assert outside("<p><script src='https://x.org/y.js'></script>") == ["https://x.org/y.js"]
    assert {path.stat().st_mode for path in out.iterdir()} == {(out / "report.html").stat().st_mode}
    aligned, moving = load_checkpoint(out / "aligned.safetensors"), shipped_checkpoint(PAIR[1])
    assert aligned.metadata["aligned_to"] == PAIR[0]
    assert not torch.equal(aligned.state["layers.0.weight"], moving.state["layers.0.weight"])
    x = torch.rand(8, 64)
    model = moving.architecture.build().eval()
    outputs = [torch.func.functional_call(model, dict(state), (x,)) for state in (moving.state, aligned.state)]
    torch.testing.assert_close(*outputs)


def test_the_table_says_what_was_measured(call):
    code, out, err = call("compare", *PAIR, "--points", "5")
    assert code == 0, err
    for word in (
        "naive",
        "aligned",
        "null",
        "loss barrier, train",
        "accuracy barrier, test",
        "function of B kept",
        "digits",
        "mlp",
    ):
        assert word in out
    assert "\x1b" not in out + err, "no terminal codes where nothing is a terminal"


# -- the single steps


def test_align_then_barrier_is_the_aligned_barrier_of_compare(call, tmp_path):
    file = tmp_path / "aligned.safetensors"
    alignment = answer(call, "align", *PAIR, "--out", file)
    assert alignment["distance_after"] < alignment["distance_before"]
    barrier = answer(call, "barrier", PAIR[0], file, "--points", "7")
    both = answer(call, "compare", *PAIR, "--points", "7", "--no-null")
    assert barrier["barrier"]["loss"]["linear"]["train"] == pytest.approx(
        both["barriers"]["loss_barrier_linear"]["aligned"]["train"]
    )
    # the control: without the alignment the barrier is another one
    naive = answer(call, "barrier", *PAIR, "--points", "7")
    assert naive["barrier"]["loss"]["linear"]["train"] > 1.2 * barrier["barrier"]["loss"]["linear"]["train"]


def test_barrier_of_a_model_with_itself_is_zero(call):
    found = answer(call, "barrier", PAIR[0], PAIR[0], "--points", "5")
    assert all(abs(value) < 1e-6 for by in found["barrier"].values() for splits in by.values() for value in splits.values())


def test_spectra(call):
    found = answer(call, "spectra", *PAIR, "--no-null", "--gamma", "0", "0.3")
    before, after = (found["total"][stage] for stage in ("before", "after"))
    assert set(before) == {"0.0", "0.3"}
    assert all(after[gamma] > before[gamma] for gamma in before)


def test_symmetry(call, tmp_path):
    found = answer(call, "symmetry", "mlp:width=16", "--out", tmp_path / "group.json")
    assert found["proof"]["passed"]
    assert [group["size"] for group in found["groups"].values()] == [16, 16]
    assert json.loads((tmp_path / "group.json").read_text())["groups"].keys() == found["groups"].keys()


def test_symmetry_is_a_table_of_factors(call):
    code, out, _ = call("symmetry", "transformer:width=16,heads=4,kv_heads=2,depth=1,hidden=8")
    assert code == 0
    lines = out.splitlines()
    assert lines[2].split() == ["factor", "units", "copies", "log10", "order", "one", "copy", "per", "moves"]
    rows = {line.split()[0]: line for line in lines[4 : lines.index("", 4)]}
    assert rows["embed"].split()[1:4] == ["16", "1", "13.3"]
    heads = rows["blocks.0.attention.query#2"].split()
    assert heads[1:5] == ["2", "2", "0.6", "blocks.0.attention.query"]
    assert "blocks.0.attention.out.weight" in rows["blocks.0.attention.query#2"]
    assert "pinned: 5 axes of 5 tensors" in out
    assert "proved by test: largest relative change" in out
    assert "tied by" not in out


def test_symmetry_explains_one_factor_one_tensor_or_all(call):
    _, factor, _ = call("symmetry", "transformer:depth=1", "--explain", "embed")
    chain = factor.partition("tied by:\n")[2].partition("\n\n")[0].splitlines()
    assert len(chain) > 6  # the whole chain, one reason a line
    assert any("blocks.0.attention.query" in reason for reason in chain)
    _, tensor, _ = call("symmetry", "transformer:depth=1", "--explain", "blocks.0.attention.key.weight")
    assert "rotation" in tensor
    assert "embed moves with embed.weight axis 0" in tensor
    _, everything, _ = call("symmetry", "mlp:width=4", "--explain")
    assert "layers.0.weight axis 1: axis 1 of the model's input" in everything
    assert everything.count("Proof by test") == 1
    code, _, err = call("symmetry", "mlp:width=4", "--explain", "layer.0")
    assert code == 2
    assert "did you mean 'layers.0'" in err


def test_symmetry_of_a_checkpoint(call, tmp_path):
    shipped = answer(call, "symmetry", PAIR[0])
    assert [group["size"] for group in shipped["groups"].values()] == [16, 16]
    assert shipped["checkpoint"] == PAIR[0]
    file = save_checkpoint(shipped_checkpoint(PAIR[0]).state, tmp_path / "silent.safetensors")
    code, _, err = call("symmetry", file)
    assert code == 2
    assert "does not say which architecture" in err
    wrong = tmp_path / "wrong.safetensors"
    save_checkpoint(shipped_checkpoint(PAIR[0]).state, wrong, metadata=shipped_checkpoint("digits-mlp-w8-seed0").metadata)
    code, _, err = call("symmetry", wrong)
    assert code == 2
    assert "fits the model only in part" in err
    code, _, err = call("symmetry", tmp_path / "nowhere.pt")
    assert code == 2
    assert "There is no checkpoint" in err


@pytest.mark.parametrize("model", ["Branch", "Item", "Noisy"])
def test_a_branch_on_data_is_said_without_the_graph(tmp_path, model):
    (tmp_path / "branching.py").write_text(BRANCHING)
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "symmetry", f"branching:{model}", "--input", "2x4"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if line and line != "a word from the model"]
    assert len(said) == 1  # the message, and nothing of torch's own
    assert "branching.py, line" in said[0]
    assert "where" in said[0]
    assert ("a word from the model" in done.stderr) == (model == "Noisy")


BRANCHING = """import sys
import torch
from torch import nn

class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        y = torch.relu(self.a(x))
        if y.sum() > 0:
            y = y * 2
        return self.b(y)

class Item(Branch):
    def forward(self, x):
        y = torch.relu(self.a(x))
        return self.b(y)[:, : int(y.argmax().item())]

class Noisy(Branch):
    def forward(self, x):
        print("a word from the model", file=sys.stderr)
        return super().forward(x)
"""


def test_symmetry_of_somebody_elses_code(call, tmp_path, monkeypatch):
    (tmp_path / "strange_nets.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    found = answer(call, "symmetry", "strange_nets:make", "--input", "2x3")
    assert [group["size"] for group in found["groups"].values()] == [5]
    code, _, err = call("symmetry", "strange_nets:make")
    assert code == 2
    assert "--input" in err


def test_train_writes_checkpoints_that_name_their_architecture(call, tmp_path):
    found = answer(call, "train", "mlp:width=8", "--task", "digits", "--seeds", "3", "4", "--epochs", "1", "--out", tmp_path)
    files = [item["file"] for item in found["checkpoints"]]
    assert [load_checkpoint(file).metadata["seed"] for file in files] == ["3", "4"]
    answer(call, "barrier", *files, "--points", "3")


def test_methods_lists_what_is_registered(call):
    found = answer(call, "methods")
    assert "weights" in [item["name"] for item in found["matchers"]]
    assert set(PAIR) <= set(found["checkpoints"])
    code, out, _ = call("methods", "weights")
    assert code == 0
    assert "max_sweeps" in out
    assert "a whole number" in out


def test_methods_says_which_data_a_matcher_needs(call):
    needs = {item["name"]: item["data"] for item in answer(call, "methods")["matchers"]}
    assert needs["weights"] == needs["spectral"] == "none"
    assert needs["activations"] == "examples"
    assert needs["straight-through"] == "labelled examples"
    assert needs["sinkhorn"] == "none; labelled examples with cost=midpoint or cost=random"
    _, out, _ = call("methods", "sinkhorn")
    assert "data: none; labelled examples with" in out
    assert "one of weights, midpoint, random" in out
    both = answer(call, "methods", "frank-wolfe")
    assert set(both) == {"matchers", "many models"}


def test_a_matcher_takes_values_for_its_fields(call):
    found = answer(call, "align", *PAIR, "--matcher", "spectral:rank=4,include_biases=true")
    assert found["settings"]["rank"] == 4
    assert found["settings"]["include_biases"] is True
    assert found["data_used"] == "no data used"


@pytest.mark.parametrize("matcher", ["activations:examples=300", "straight-through:epochs=1"])
def test_a_matcher_that_looks_at_data_gets_them(call, matcher):
    for command, more in (("align", ()), ("compare", ("--points", "3", "--no-null"))):
        found = answer(call, command, *PAIR, "--matcher", matcher, *more)
        found = found.get("alignment", found)
        assert found["data_used"].endswith("examples of digits/train")
        assert found["function_kept"]["passed"]
    assert "null_R" in str(answer(call, "compare", *PAIR, "--matcher", matcher, "--points", "3")["spectra"])


def test_without_a_task_weights_are_matched_and_activations_say_why_not(call, tmp_path):
    files = [save_checkpoint(shipped_checkpoint(name).state, tmp_path / f"{name}.safetensors") for name in PAIR]
    words = ("align", *files, "--model", "mlp:width=16")
    found = answer(call, *words)
    assert found["data_used"] == "no data used"
    assert found["function_kept"]["passed"]
    assert any("random inputs" in note for note in found["notes"])
    with_task = answer(call, *words, "--task", "digits")
    assert with_task["objective"] == found["objective"]
    assert not any("random inputs" in note for note in with_task["notes"])
    for matcher in ("activations", "straight-through", "sinkhorn:cost=midpoint"):
        code, out, err = call(*words, "--matcher", matcher)
        assert (code, out) == (2, "")
        assert matcher.partition(":")[0] in err
        assert "--task" in err
        assert "weights" in err  # what works without one
    assert call("compare", *words[1:])[0] == 2  # a barrier is measured on data


def test_a_task_that_cannot_be_read_here_does_not_stop_what_needs_none(call, tmp_path):
    files = []
    for name in PAIR:
        metadata = {**shipped_checkpoint(name).metadata, "task": "mnist"}
        files.append(save_checkpoint(shipped_checkpoint(name).state, tmp_path / f"{name}.safetensors", metadata=metadata))
    found = answer(call, "align", *files)
    assert any("'mnist' cannot be read here" in note for note in found["notes"])
    code, _, err = call("align", *files, "--matcher", "activations")
    assert code == 2
    assert "'mnist' cannot be read here" in err
    assert call("align", *files, "--task", "mnist")[0] == 2  # what was asked for by name must be there


# -- wrong use: exit code 2, one message, no traceback


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["comprae"], "did you mean 'compare'"),
        (["compare", "only-one"], "two, A and B"),
        (["compare", "no-such-file.pt", "other.pt"], "no-such-file.pt"),
        (["compare", *PAIR, "--matcher", "weigths"], "did you mean 'weights'"),
        (["compare", *PAIR, "--matcher", "weights:speed=3"], "speed"),
        (["align", *PAIR, "--matcher", "spectral:rnk=16"], "did you mean 'rank'"),
        (["align", *PAIR, "--matcher", "spectral:rank=four"], "Expected: a whole number"),
        (["align", *PAIR, "--matcher", "weights:restarts=1.5"], "Expected: a whole number"),
        (["align", *PAIR, "--matcher", "weights:order=upwards"], "one of random, given"),
        (["align", *PAIR, "--matcher", "spectral:rank"], "key=value"),
        (["compare", *PAIR, "--task", "digit"], "did you mean 'digits'"),
        (["compare", *PAIR, "--task", "mnist"], "root"),
        (["compare", *PAIR, "--model", "mlp:width=32"], "layers.0.weight"),
        (["compare", *PAIR, "--points", "1"], "points"),
        (["compare", PAIR[0], "digits-mlp-w32-seed0"], "layers.0.weight"),
        (["barrier", *PAIR, "--definition", "liner"], "did you mean 'linear'"),
        (["symmetry", "mpl"], "did you mean 'mlp'"),
        (["symmetry", "mlp", "--input", "2xtwo"], "2x3x32x32"),
        (["train", "mlp"], "--task"),
        (["serve", "--checkpoints", "no-such-folder"], "no-such-folder"),
        (["methods", "weigths"], "did you mean 'weights'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_gets_one_message(call, words, message):
    code, out, err = call(*words)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_wrong_options_are_wrong_use(call):
    for words in (["compare", "--no-such-option"], [], ["compare", "--points", "many"]):
        code, _, err = call(*words)
        assert code == 2
        assert "usage" in err


def test_a_damaged_file_is_named(call, tmp_path):
    file = tmp_path / "half.pt"
    file.write_bytes(b"PK\x03\x04 and then nothing")
    code, _, err = call("barrier", file, file, "--model", "mlp", "--task", "digits")
    assert code == 2
    assert "half.pt" in err


def test_weights_that_are_not_finite_are_refused_by_name(call, tmp_path):
    good = shipped_checkpoint(PAIR[0])
    state = {name: tensor.clone() for name, tensor in good.state.items()}
    state["layers.1.weight"][0, 0] = float("nan")
    save_checkpoint(state, tmp_path / "bad.safetensors", metadata=good.metadata)
    code, _, err = call("align", PAIR[0], tmp_path / "bad.safetensors")
    assert code == 2
    assert "layers.1.weight" in err


def test_a_taken_port_is_said_before_anything_starts(call):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, _, err = call("serve", "--port", taken.getsockname()[1])
    assert code == 2
    assert "--port" in err


# -- the process around it


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(call, command):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert "--json" in out


def test_python_m_workbench_and_its_exit_code():
    for words, code in ((["methods", "--json"], 0), (["comprae"], 2)):
        done = subprocess.run([sys.executable, "-m", "workbench", *words], capture_output=True, text=True, env=dict(os.environ))
        assert done.returncode == code
        assert "Traceback" not in done.stderr


def test_json_never_holds_what_json_does_not_know():
    assert console.plain({"a": [float("nan"), float("inf"), 1.5], 2: torch.tensor([1, 2])}) == {
        "a": [None, None, 1.5],
        "2": [1, 2],
    }


def test_progress_draws_nothing_where_the_error_stream_is_no_terminal(capsys):
    with console.progress() as report:
        Reporter(report, "matching", total=2).step(objective=1.0)
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def interruptible():
    """SIGINT as a foreground process has it; one in the background (a test run under nohup) ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_at_the_next_step(interruptible):
    with console.progress() as report:
        reporter = Reporter(report, "matching", total=3)
        reporter.step()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Cancelled):
            reporter.step()
    # outside, Ctrl-C is again what it was
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_background_process_goes_on_ignoring_ctrl_c(interruptible):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with console.progress() as report:
        signal.raise_signal(signal.SIGINT)
        Reporter(report, "matching", total=1).step()


def test_a_stopped_command_leaves_nothing_and_says_so(call, tmp_path, monkeypatch, interruptible):
    import workbench.profiles

    def stopped(*arguments, **options):
        raise Cancelled

    monkeypatch.setattr(workbench.profiles, "profile_path", stopped)
    code, out, err = call("barrier", *PAIR, "--out", tmp_path / "profile.nc")
    assert (code, out) == (130, "")
    assert "stopped" in err
    assert list(tmp_path.iterdir()) == []


# -- somebody else's code and where answers are written


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A folder with ``own_factories.py``, from which the command is run."""
    (tmp_path / "own_factories.py").write_text(
        "import sys\nfrom torch import nn\n"
        "def raises(): raise RuntimeError('boom')\n"
        "def needs(width): return nn.Linear(width, width)\n"
        "def leaves(): sys.exit(0)\n"
        "instance = nn.Linear(64, 10)\n"
        "class Chatty(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        print('building')\n"
        "        self.body = nn.Sequential(nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10))\n"
        "    def forward(self, x):\n"
        "        print('running')\n"
        "        return self.body(x)\n"
    )
    (tmp_path / "own_broken.py").write_text("def (\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("own_factories", "own_broken"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("own_factories:raises", "RuntimeError: boom in own_factories.py, line 3"),
        ("own_factories:needs", "missing 1 required positional argument"),
        ("own_factories:leaves", "SystemExit"),
        ("own_factories:instance", "is a Linear"),
        ("own_broken:x", "SyntaxError"),
        (":x", "No architecture"),
    ],
)
def test_what_fails_in_a_users_factory_is_said(call, own_code, model, message):
    code, out, err = call("symmetry", model, "--input", "2x64", "--json")
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_what_a_users_model_prints_does_not_spoil_the_answer(call, own_code):
    found = answer(call, "symmetry", "own_factories:Chatty", "--input", "2x64")
    assert found["proof"]["passed"]
    _, _, err = call("symmetry", "own_factories:Chatty", "--input", "2x64", "--json")
    assert "building" in err


@pytest.mark.parametrize("command", ["align", "barrier", "spectra", "compare", "symmetry"])
@pytest.mark.parametrize("out", ["", "blocked/x", "there"])
def test_an_answer_that_cannot_be_written_is_said_before_the_work(call, tmp_path, monkeypatch, command, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blocked").write_text("a file")
    (tmp_path / "there" / "comparison.nc").mkdir(parents=True)
    monkeypatch.setattr("workbench.symmetry.discover_symmetry", lambda *_, **__: pytest.fail("the work began"))
    code, _, err = call(command, *(["mlp"] if command == "symmetry" else PAIR), "--out", out)
    assert code == 2
    assert "Expected" in err
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["comparison.nc"]


def test_a_home_folder_is_found_wherever_it_stands(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert call("barrier", *PAIR, "--points", "3", "--out", "~/deep/er.nc")[0] == 0
    assert call("compare", *PAIR, "--points", "3", "--no-null", "--out", "~/all")[0] == 0
    assert call("barrier", PAIR[0], "~/all/aligned.safetensors", "--points", "3")[0] == 0
    assert (tmp_path / "deep" / "er.nc").is_file()
    assert not (tmp_path / "~").exists()


def test_a_failure_while_writing_leaves_the_earlier_result_whole(call, tmp_path, monkeypatch):
    out = tmp_path / "result"
    assert call("compare", *PAIR, "--points", "3", "--no-null", "--out", out)[0] == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.cli.inputs.Pair.write_aligned", stop)
    assert call("compare", *PAIR, "--points", "5", "--no-null", "--out", out)[0] == 130
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", *PAIR, "--device", "abacus"), "expected: one of auto, cpu"),
        (("compare", *PAIR, "--device", "meta"), "cannot be used"),
        (("train", "mlp:width=4", "--task", "digits", "--device", "cuda:99"), "cannot be used"),
        (("compare", *PAIR, "--seed", "-1"), "whole number"),
        (("compare", *PAIR, "--seed", str(2**64)), "whole number"),
        (("compare", *PAIR, "--threads", "100000"), "cores"),
        (("compare", *PAIR, "--matcher", "weights:max_sweeps=many"), "wrong type"),
        (("compare", *PAIR, "--key", "a", "--key", "b", "--key", "c"), "3 times"),
        (("symmetry", "mlp", "--input", "99999999999x64"), "memory"),
    ],
)
def test_numbers_and_devices_that_cannot_be(call, words, message):
    code, out, err = call(*words, "--json")
    assert (code, out) == (2, "")
    assert message in err.lower()


def test_a_wrong_number_of_points_is_said_before_the_work(call, monkeypatch):
    monkeypatch.setattr("workbench.stages.discover_symmetry", lambda *_, **__: pytest.fail("the work began"))
    for words in (("--points", "1"), ("--splits", "validation")):
        assert call("compare", *PAIR, *words)[0] == 2


def test_what_is_asked_for_twice_is_given_once(call):
    found = answer(call, "compare", *PAIR, "--points", "3", "--no-null", "--splits", "test", "test", "--gamma", "0.3", "0.3")
    assert list(found["ends"]["loss"]) == ["test"]


def test_each_file_may_have_its_own_key_and_what_was_renamed_is_said(call, tmp_path):
    first, second = (dict(shipped_checkpoint(name).state) for name in PAIR)
    torch.save({f"net.{name}": tensor for name, tensor in first.items()}, tmp_path / "plain.pt")
    torch.save({"model": first, "ema": second}, tmp_path / "two.pt")
    words = ("barrier", tmp_path / "plain.pt", tmp_path / "two.pt", "--model", "mlp:width=16", "--task", "digits", "--points", "3")
    assert "--key" in call(*words)[2]
    found = answer(call, *words, "--key", "", "--key", "ema")
    assert any("'net.' taken off" in note for note in found["notes"])
    assert found["barrier"] == answer(call, "barrier", *PAIR, "--points", "3")["barrier"]
