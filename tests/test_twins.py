"""A model whose forward is a closure is refused where a copy would silently keep the original's weights."""

import pytest
import torch
from torch import nn

from workbench.errors import WorkbenchError
from workbench.evaluation import evaluate
from workbench.matching import align
from workbench.symmetry import discover_symmetry
from workbench.tasks import Task
from workbench.twins import twin, watching


class Closed(nn.Module):
    def __init__(self, closed=True):
        super().__init__()
        self.a, self.head = nn.Linear(5, 6), nn.Linear(6, 2)
        if closed:
            self.read = lambda x: self.head(torch.relu(self.a(x)))

    def read(self, x):
        return self.head(torch.relu(self.a(x)))

    def forward(self, x):
        return self.read(x)


X, Y = torch.randn(8, 5), torch.arange(8) % 2
TASK = Task("mine", splits={"train": (X, Y)})


def test_the_silent_error_is_real():
    """The control: without the guard the copy answers with the original's weights, whatever the copy holds."""
    model = Closed()
    copied = twin(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
        assert torch.equal(copied(X), model(X))
        assert float(copied(X).abs().max()) > 0


@pytest.mark.parametrize("closed", [True, False])
def test_reading_the_original_is_refused(closed):
    model = Closed(closed)
    state = {k: v.clone() for k, v in model.state_dict().items()}

    def judge():
        copied = twin(model)
        with watching(model):
            copied(X)

    def compare():
        symmetry = discover_symmetry(model, (X,))
        align(symmetry, state, symmetry.apply(symmetry.sample(0), state), model=model, inputs=X)

    for act in (judge, compare, lambda: evaluate(model, state, TASK)):
        if closed:
            with pytest.raises(WorkbenchError, match=r"still reads the original's weights \(a\.weight"):
                act()
        else:
            act()


def test_a_twin_leaves_the_model_as_it_was():
    model = Closed(False).train()
    copied = twin(model, dtype=torch.float64)
    assert model.training
    assert not copied.training
    assert next(model.parameters()).dtype == torch.float32


def test_a_twin_of_a_model_that_kept_an_activation_keeps_its_values_only():
    """As after a training step: such a tensor cannot be deep-copied along with its history."""
    net = nn.Linear(3, 2)
    net.kept = [{"h": net(torch.ones(1, 3))}]
    copied = twin(net)
    assert torch.equal(copied.kept[0]["h"], net.kept[0]["h"])
    assert copied.kept[0]["h"].grad_fn is None
    assert net.kept[0]["h"].grad_fn is not None
