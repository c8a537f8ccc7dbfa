"""A program decomposed operation by operation is the program torch decomposes as a whole: the same operations, the same values."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workbench.symmetry.decomposition import to_core_aten, views_to_reshapes


class Of(nn.Module):
    def __init__(self, forward, **modules: nn.Module) -> None:
        super().__init__()
        self._forward = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self._forward(self, x)


def attention(m, x):
    q, k, v = m.qkv(x).view(2, 7, 3, 2, 4).unbind(2)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True) + torch.matmul(torch.softmax(q @ k.mT, -1), v)
    return m.out(y.transpose(1, 2).flatten(2))


def added_in_place(m, x):
    y = m.one(x)
    y += m.two(x)
    y *= 2
    return y.relu_() + y


def written_through_a_view(m, x):
    y = m.one(x)
    y[:, 1:] += 1
    return y


def written_under_a_view(m, x):
    y = m.one(x)
    view = y.view(2, 4, 2)
    y.mul_(3)
    return view.sum(1)


def another_type(m, x):
    y = m.one(x).half().tanh()
    y += m.two(x)
    return y.float()


def the_same_twice(m, x):
    y, z = m.one(x)[:, :2], m.two(x)[:, :2]
    return torch.matmul(y, y) + torch.matmul(y, z) + torch.matmul(z, z)


IMAGE, ROW, SEQUENCE = (2, 3, 6, 6), (2, 5), (2, 7, 5)
LINEARS = {"one": nn.Linear(5, 8), "two": nn.Linear(5, 8)}
MODELS = {
    "conv": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()), IMAGE),
    "batch statistics": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), IMAGE),
    "group norm": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.PixelShuffle(2), nn.Upsample(scale_factor=2)), IMAGE),
    "attention": (Of(attention, qkv=nn.Linear(5, 24), out=nn.Linear(8, 3)), SEQUENCE),
    "encoder layer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 7, 8)),
    "LSTM": (nn.LSTM(5, 4, 2, bidirectional=True), SEQUENCE),
    "GRU": (nn.GRU(5, 4), SEQUENCE),
    "RNN": (nn.RNN(5, 4), SEQUENCE),
    "equal layers": (nn.Sequential(*(nn.Linear(5, 5) for _ in range(4))), ROW),
    "the same twice": (Of(the_same_twice, **LINEARS), ROW),
    "interpolation": (Of(lambda m, x: F.interpolate(m.conv(x), size=(7, 7), mode="bilinear"), conv=nn.Conv2d(3, 4, 3)), IMAGE),
    "instance norm": (Of(lambda m, x: F.instance_norm(m.conv(x)), conv=nn.Conv2d(3, 4, 3)), IMAGE),
    "einsum": (Of(lambda m, x: torch.einsum("bi,ci,bj->cj", m.one(x), m.two(x), x), **LINEARS), ROW),
    "one-hot": (Of(lambda m, x: F.one_hot(m.one(x).argmax(-1), 8) * m.two(x), **LINEARS), ROW),
    "in place": (Of(added_in_place, **LINEARS), ROW),
    "through a view": (Of(written_through_a_view, **LINEARS), ROW),
    "under a view": (Of(written_under_a_view, **LINEARS), ROW),
    "another type": (Of(another_type, **LINEARS), ROW),
}  # fmt: skip
# Where a result lies otherwise in memory, torch makes a copy or a product of another form.
OTHER_STRIDES = {"attention", "encoder layer"}
LONG_WAY = {"through a view", "under a view", "another type"}
ASSERTIONS = {"aten._assert_tensor_metadata.default", "aten._assert_async.msg"}


@pytest.mark.parametrize("name", MODELS)
def test_the_program_is_the_one_decomposed_as_a_whole(name):
    model, shape = MODELS[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    with torch.no_grad():
        expected = model.eval()(x.clone())
        whole = torch.export.export(model, (x,), strict=False).run_decompositions()
        program = torch.export.export(model, (x,), strict=False)
        placeholders = [node.name for node in program.graph.nodes if node.op == "placeholder"]
        ours = to_core_aten(program)
        assert (ours is not program) == (name in LONG_WAY)
        assert [node.name for node in ours.graph.nodes if node.op == "placeholder"] == placeholders
        for graph in (whole.graph, ours.graph):
            for node in list(graph.nodes):
                if str(node.target) in ASSERTIONS:
                    graph.erase_node(node)
            graph.eliminate_dead_code()
        operations = [Counter(str(n.target) for n in p.graph.nodes if n.op == "call_function") for p in (whole, ours)]
        if name not in OTHER_STRIDES:
            assert operations[0] == operations[1]
        made = _run(ours, x)
    torch.testing.assert_close(made[-1], expected[1][1] if name == "LSTM" else expected[1] if name in ("GRU", "RNN") else expected)
    for node in ours.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable


def _run(program, x):
    views_to_reshapes(program.graph)
    program.graph_module.recompile()
    state = {**program.state_dict, **program.constants}
    specs = program.graph_signature.input_specs
    values = [x.clone() if spec.target is None else state[spec.target] for spec in specs]
    recorded = Recorded(program.graph_module)
    made = recorded.run(*values)
    assert all(recorded.right)
    assert len(recorded.right) > len(values)
    return made


class Recorded(torch.fx.Interpreter):
    """Remembers whether every value has the shape and the type its node says."""

    def __init__(self, module):
        super().__init__(module)
        self.right: list[bool] = []

    def run_node(self, node):
        value = super().run_node(node)
        if isinstance(value, torch.Tensor):
            said = node.meta["val"]
            self.right.append((tuple(value.shape), value.dtype) == (tuple(said.shape), said.dtype))
        return value


@pytest.mark.parametrize("solve", [lambda a, b: torch.linalg.inv(a) @ b, torch.linalg.solve])
def test_a_check_that_gives_no_value_is_left_out(solve):
    """An inverse comes with one of its success."""
    torch.manual_seed(0)
    model, x = Of(lambda m, x: solve(m.one.weight[:5], m.two(x)[:, :5].T), **LINEARS), torch.randn(ROW)
    with torch.no_grad():
        program = torch.export.export(model, (x,), strict=False)
        ours = to_core_aten(program)
        assert ours is program
        torch.testing.assert_close(_run(ours, x)[-1], model(x))
