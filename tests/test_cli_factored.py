"""``workbench align`` on somebody's own attention model: factored groups from the checkpoint files to the answer."""

import json
import math
import sys

import pytest
import torch

from workbench.checkpoints import load_checkpoint, save_checkpoint
from workbench.cli import main
from workbench.matching import align
from workbench.symmetry import discover_symmetry

CODE = """
import torch
from torch import nn
from torch.nn import functional as F

class Rows(nn.Module):
    '''The eight rows of a digit as tokens: attention with 4 query heads in 2 groups, then experts.'''

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(8, 16)
        self.q, self.k, self.v, self.o = nn.Linear(16, 24), nn.Linear(16, 12), nn.Linear(16, 10), nn.Linear(20, 16)
        self.router = nn.Linear(16, 3)
        self.up, self.down = nn.Parameter(torch.randn(3, 12, 16) / 4), nn.Parameter(torch.randn(3, 16, 12) / 4)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.into(x.view(-1, 8, 8))
        q = self.q(x).view(-1, 8, 2, 2, 6).permute(0, 2, 3, 1, 4)
        k = self.k(x).view(-1, 8, 2, 1, 6).permute(0, 2, 3, 1, 4)
        v = self.v(x).view(-1, 8, 2, 1, 5).permute(0, 2, 3, 1, 4)
        mixed = torch.softmax(q @ k.mT / 6**0.5, -1) @ v
        x = (x + self.o(mixed.permute(0, 3, 1, 2, 4).reshape(-1, 8, 20))).mean(1)
        inside = F.gelu(torch.einsum("bd,ehd->beh", x, self.up))
        return self.head(x + torch.einsum("beh,edh,be->bd", inside, self.down, torch.softmax(self.router(x), -1)))
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two checkpoints of one model, the second a planted element and a little noise away."""
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "rows.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    from own_package.rows import Rows

    torch.manual_seed(0)
    model = Rows()
    symmetry = discover_symmetry(model, (torch.rand(2, 64),))
    a = {name: t.detach().clone() for name, t in model.state_dict().items()}
    planted = symmetry.sample(3)
    b = {name: t + 0.02 * t.std() * torch.randn(t.shape) for name, t in symmetry.apply(planted, a).items()}
    for name, state in (("a", a), ("b", b)):
        save_checkpoint(state, tmp_path / f"{name}.safetensors")
    yield tmp_path, model, symmetry, a, b, planted
    for name in [n for n in sys.modules if n.startswith("own_package")]:
        del sys.modules[name]


def call(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("matcher", ["weights", "weights:head_similarity=invariant,start=anchored"])
def test_align_on_a_factored_model(files, capsys, matcher):
    folder, _, symmetry, a, _, planted = files
    pair = (folder / "a.safetensors", folder / "b.safetensors", "--model", "own_package.rows:Rows", "--task", "digits")
    code, out, err = call(capsys, "align", *pair, "--matcher", matcher, "--out", folder / "moved.safetensors", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["function_kept"]["passed"]
    assert found["units_moved"] == planted.inverse().units_moved()
    assert found["distance_after"] < 0.1 * found["distance_before"]
    assert found["converged"]
    moved = load_checkpoint(folder / "moved.safetensors").state
    assert all((moved[name] - a[name]).abs().max() < 0.5 * a[name].abs().max() for name in a)
    told = "ordered by invariant products: " in " ".join(found["notes"])
    assert told == ("invariant" in matcher)
    code, out, _ = call(capsys, "align", *pair, "--matcher", matcher)
    assert code == 0
    assert "function of B kept" in out
    assert all(name in out for name in symmetry.groups)
    # The control: nothing matched stays where it was.
    code, out, _ = call(capsys, "align", *pair, "--matcher", "identity", "--json")
    assert json.loads(out)["distance_after"] == found["distance_before"]


@pytest.mark.parametrize("similarity", ["weights", "invariant"])
def test_the_alignment_of_a_factored_model_is_evidence(files, similarity):
    """Distances, history and summary fit one another; only then are they worth printing."""
    from workbench.matching import WeightMatching

    _, model, symmetry, a, b, _ = files
    x = torch.rand(16, 64)
    found = align(symmetry, a, b, WeightMatching(head_similarity=similarity), model=model, inputs=x)
    norms = sum(float(t.double().square().sum()) for s in (a, b) for t in s.values())
    assert found.objective == pytest.approx((norms - found.distance_after**2) / 2, rel=1e-9)
    assert found.history[0].objective == pytest.approx((norms - found.distance_before**2) / 2, rel=1e-9)
    assert found.history[-1].objective == pytest.approx(found.objective, rel=1e-9)
    assert all((step.gain > 0) == (step.units_changed > 0) for step in found.history)
    outer = {name for group in symmetry.groups.values() for name in group.over}
    assert outer <= {step.factor for step in found.history}
    assert all(math.isfinite(step.objective) for step in found.history)
    told = json.loads(json.dumps(found.summary()))
    assert told["settings"]["head_similarity"] == similarity
    assert told["units_moved"].keys() == symmetry.groups.keys()
    if similarity == "weights":
        objectives = [step.objective for step in found.history]
        assert objectives == sorted(objectives)
