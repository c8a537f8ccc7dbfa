"""What goes wrong with permutations on real architectures, each as a small input with its right result.

In every case a random element of the group, and of each factor alone, keeps the module's function to 1e-12 in float64.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from workbench.errors import WorkbenchError
from workbench.symmetry import discover_symmetry
from workbench.symmetry.entries import CONSTANT, FIXED, MOVED
from workbench.symmetry.layout import Leaf, Product, Sum, factors

f = math.factorial


def order(symmetry) -> int:
    return math.prod(f(group.size) ** group.copies for group in symmetry.groups.values())


def error_of(symmetry, model, inputs, element) -> float:
    """max |y − y'| / max |y| of the module in float64, on weights and statistics drawn anew."""
    generator = torch.Generator().manual_seed(5)
    model = copy.deepcopy(model).double().eval()
    state = {}
    for key, tensor in model.state_dict().items():
        draw = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) + 0.5
        draw = draw if key.endswith("running_var") else torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        state[key] = draw if tensor.is_floating_point() else tensor
    inputs = pytree.tree_map(lambda x: x.double() if x.is_floating_point() else x, inputs)
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    with torch.no_grad():
        before, after = (
            pytree.tree_leaves(torch.func.functional_call(model, values, args, kwargs))
            for values in (state, symmetry.apply(element, state))
        )
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(before, after, strict=True))


def proved(model, inputs, **options):
    """The symmetry, tested as a whole and factor by factor."""
    symmetry = discover_symmetry(model, inputs, **options)
    assert symmetry.proof.passed
    assert not any("defect" in note for note in symmetry.notes)
    element = symmetry.sample(7)
    assert error_of(symmetry, model, inputs, element) < 1e-12
    for name in symmetry.groups:
        alone = element.restrict([name, *(o for o, g in symmetry.groups.items() if name in g.over)])
        assert error_of(symmetry, model, inputs, alone) < 1e-12, name
    return symmetry


class Net(nn.Module):
    def __init__(self, forward, **modules):
        super().__init__()
        self.run = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)


class Bottleneck(nn.Module):
    def __init__(self, c_in, inner, c_out):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, c_out, 1, bias=False), nn.BatchNorm2d(c_out)
        self.downsample = None
        if c_in != c_out:
            self.downsample = nn.Sequential(nn.Conv2d(c_in, c_out, 1, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


class Stage(nn.Module):
    """A stem of 4, a block that projects to 8, and one that does not."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Bottleneck(4, 3, 8), Bottleneck(8, 5, 8))
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(self.layer1(F.relu(self.bn(self.conv(x)))).mean((2, 3)))


IMAGE = (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)),)
ROW = (torch.randn(2, 5, generator=torch.Generator().manual_seed(1)),)


def test_no_convolution_of_a_bottleneck_is_forgotten():
    """A table written by hand once named conv2 twice and conv3 never: every key must be moved, fixed on purpose or constant."""
    model = Stage()
    symmetry = proved(model, IMAGE)
    state = model.state_dict()
    assert set(symmetry.tensors) == set(state)
    roles = {name: entry.role for name, entry in symmetry.tensors.items()}
    assert {name for name, role in roles.items() if role == CONSTANT} == {n for n in state if n.endswith("num_batches_tracked")}
    assert {name for name, role in roles.items() if role == FIXED} == {"fc.bias"}
    assert all(role in (MOVED, FIXED, CONSTANT) for role in roles.values())
    inner = {name: symmetry.tensors[f"layer1.0.{name}.weight"].layouts[0] for name in ("conv1", "conv2", "conv3")}
    assert len(set(inner.values())) == 3
    with pytest.raises(WorkbenchError, match=r"unknown: layer1\.0\.conv4\.weight"):
        symmetry.apply(symmetry.identity(), state | {"layer1.0.conv4.weight": torch.zeros(3, 3, 1, 1)})
    with pytest.raises(WorkbenchError, match=r"missing: layer1\.0\.bn3\.weight"):
        symmetry.apply(symmetry.identity(), {n: t for n, t in state.items() if n != "layer1.0.bn3.weight"})


def test_a_projection_shortcut_and_all_blocks_of_a_stage_share_one_order():
    model = Stage()
    symmetry = proved(model, IMAGE)
    assert order(symmetry) == f(4) * f(3) * f(3) * f(8) * f(5) * f(5)
    writers = ("layer1.0.conv3", "layer1.0.downsample.0", "layer1.1.conv3")
    norms = ("layer1.0.bn3", "layer1.0.downsample.1", "layer1.1.bn3")
    entries = [f"{name}.weight" for name in writers]
    entries += [f"{name}.{part}" for name in norms for part in ("weight", "bias", "running_mean", "running_var")]
    assert len({symmetry.tensors[name].layouts[0] for name in entries}) == 1
    assert symmetry.tensors["layer1.1.conv1.weight"].layouts[1] == symmetry.tensors["layer1.0.conv3.weight"].layouts[0]
    moved = symmetry.apply(symmetry.sample(0), model.state_dict())
    assert int(moved["bn.num_batches_tracked"]) == 0
    # the negative control: the shortcut's statistics stay
    still = {
        name: replace(entry, layouts=(Leaf(None, 8),), role=FIXED)
        for name, entry in symmetry.tensors.items()
        if name.startswith("layer1.0.downsample.1.running")
    }
    assert len(still) == 2
    assert not replace(symmetry, tensors={**symmetry.tensors, **still}).check(model, IMAGE).passed


@pytest.mark.parametrize("groups", [1, 2])
def test_a_generator_unflattens_in_blocks_and_transposed_weights_have_their_axes_swapped(groups):
    model = nn.Sequential(
        nn.Linear(5, 64), nn.Unflatten(1, (4, 4, 4)), nn.ConvTranspose2d(4, 6, 3, groups=groups), nn.ReLU(), nn.Conv2d(6, 2, 3)
    )
    symmetry = proved(model, ROW)
    assert order(symmetry) == (f(4) * f(6) if groups == 1 else f(2) * f(2) ** 2 * f(3) ** 2)
    rows, channels = symmetry.tensors["0.weight"].layouts[0], symmetry.tensors["2.weight"].layouts
    assert isinstance(rows, Product)
    assert rows.children[-1] == Leaf(None, 16)
    assert list(factors(rows)) == list(factors(channels[0]))
    assert symmetry.tensors["4.weight"].layouts[1] == symmetry.tensors["2.bias"].layouts[0]
    assert list(factors(channels[1])) == list(factors(symmetry.tensors["2.bias"].layouts[0]))[-1:]


def test_depthwise_convolution_with_a_multiplier_and_an_inverted_residual():
    """Each of 4 channels writes 2: the outputs of a channel stay together and have an order of their own."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, groups=4), nn.ReLU(), nn.Conv2d(8, 2, 1))
    assert order(proved(model, IMAGE)) == f(4) * f(2) ** 4

    def inverted(m, x):
        x = m.stem(x)
        y = F.relu6(m.bn1(m.expand(x)))
        x = x + m.bn3(m.project(F.relu6(m.bn2(m.depth(y)))))
        return m.head(x.mean((2, 3)))

    model = Net(
        inverted,
        stem=nn.Conv2d(3, 4, 1),
        expand=nn.Conv2d(4, 7, 1, bias=False),
        bn1=nn.BatchNorm2d(7),
        depth=nn.Conv2d(7, 7, 3, padding=1, groups=7, bias=False),
        bn2=nn.BatchNorm2d(7),
        project=nn.Conv2d(7, 4, 1, bias=False),
        bn3=nn.BatchNorm2d(4),
        head=nn.Linear(4, 2),
    )
    assert order(proved(model, IMAGE)) == f(4) * f(7)


def test_convolutions_that_pool_inside_attention():
    """One depthwise convolution serves both heads, so the units inside the heads have one order for both, not one each."""

    def forward(m, x):
        x = m.stem(x).flatten(2).transpose(1, 2)
        n, t, _ = x.shape
        q, k, v = (
            pool(y.view(n, t, 2, 4).permute(0, 2, 3, 1).reshape(n * 2, 4, 4, 4)).flatten(2).unflatten(0, (n, 2)).mT
            for pool, y in ((m.pool_q, m.q(x)), (m.pool_k, m.k(x)), (m.pool_v, m.v(x)))
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return m.head(m.out(y))

    def pool(stride):
        return nn.Conv2d(4, 4, 3, padding=1, stride=stride, groups=4, bias=False)

    model = Net(
        forward,
        stem=nn.Conv2d(3, 6, 2, stride=2),
        q=nn.Linear(6, 8),
        k=nn.Linear(6, 8, bias=False),
        v=nn.Linear(6, 8),
        pool_q=pool(1),
        pool_k=pool(2),
        pool_v=pool(2),
        out=nn.Linear(8, 7),
        head=nn.Linear(7, 2),
    )
    # 6 into the heads, 2 heads, 4 query/key and 4 value units common to them, 7 out.
    assert order(proved(model, IMAGE)) == f(6) * f(2) * f(4) * f(4) * f(7)


@pytest.mark.parametrize(("kind", "gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}], ids=str)
def test_the_gates_of_a_recurrence_share_the_order_of_the_state(kind, gates, options):
    directions = 2 if "bidirectional" in options else 1
    model = Net(lambda m, x: m.head(m.rnn(x)[0]), rnn=kind(5, 4, batch_first=True, **options), head=nn.Linear(4 * directions, 2))
    x = (torch.randn(2, 3, 5),)
    symmetry = proved(model, x)
    assert order(symmetry) == f(4) ** (directions * options.get("num_layers", 1))
    (state,) = factors(symmetry.tensors["rnn.weight_hh_l0"].layouts[1])
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        layout = symmetry.tensors[f"rnn.{name}"].layouts[0]
        assert set(factors(layout)) == {state}
        assert layout.size == 4 * gates
    if "num_layers" in options:
        assert list(factors(symmetry.tensors["rnn.weight_ih_l1"].layouts[1])) == [state]


def test_bare_parameters_move_where_they_are_used_and_not_by_their_shape():
    """As many positions as units: only their use tells the two axes of a position table apart."""

    class Vision(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 8, (2, 8), stride=(2, 8))
            self.cls_token, self.pos_embed = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 8, 8))
            self.registers = nn.Parameter(torch.randn(1, 3, 8), requires_grad=False)
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 8)
            self.gamma = nn.Parameter(torch.ones(8), requires_grad=False)
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), self.registers.expand(len(x), -1, -1), x], 1)
            x = x + self.pos_embed
            x = x + self.gamma * self.down(F.gelu(self.up(self.norm(x))))
            return self.head(x[:, 0] + x.amax(1))

    symmetry = proved(Vision(), IMAGE)
    stream = symmetry.tensors["norm.weight"].layouts[0]
    for name in ("cls_token", "pos_embed", "registers"):
        assert symmetry.tensors[name].layouts[2] == stream
        assert not set(factors(symmetry.tensors[name].layouts[1])) & set(factors(stream))
    # The largest value does not say at which token it was: the 3 registers change places, along with the rows of the table that are
    # added to them; the class token's row and the rows of the picture's places do not.
    (register,) = factors(symmetry.tensors["registers"].layouts[1])
    assert symmetry.tensors["pos_embed"].layouts[1] == Sum((Leaf(None, 1), Leaf(register, 3), Leaf(None, 4)))
    assert symmetry.tensors["gamma"].layouts == (stream,)
    assert order(symmetry) == f(8) * f(6) * f(3)


@pytest.mark.parametrize("shape", [(6,), (6, 1, 1), (1, 6, 1, 1)])
def test_layer_scale_of_any_shape(shape):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.depth = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1, groups=6)
            self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 7), nn.Linear(7, 6)
            self.gamma, self.head = nn.Parameter(torch.ones(shape)), nn.Linear(6, 2)

        def forward(self, x):
            x = self.stem(x)
            y = self.down(F.gelu(self.up(self.norm(self.depth(x).permute(0, 2, 3, 1)))))
            y = (self.gamma * y).permute(0, 3, 1, 2) if len(shape) == 1 else self.gamma * y.permute(0, 3, 1, 2)
            return self.head((x + y).mean((2, 3)))

    symmetry = proved(Scaled(), IMAGE)
    assert order(symmetry) == f(6) * f(7)
    assert list(factors(symmetry.tensors["gamma"].layouts[shape.index(6)])) == list(
        factors(symmetry.tensors["norm.weight"].layouts[0])
    )


@pytest.mark.parametrize("how", ["frozen", "no_grad", "inference_mode", "detached"])
def test_a_graph_without_gradients_has_the_same_group(how):
    """Tools that read the autograd graph find an empty one here and report success."""

    def forward(m, x):
        h = torch.relu(m.a(x))
        return m.b(h.detach() if how == "detached" else h)

    model = Net(forward, a=nn.Linear(5, 7), b=nn.Linear(7, 3))
    model.b.requires_grad_(False)
    if how == "frozen":
        model.requires_grad_(False)
    flags = [p.requires_grad for p in model.parameters()]
    if how in ("no_grad", "inference_mode"):
        with getattr(torch, how)():
            symmetry = discover_symmetry(model, ROW)
    else:
        symmetry = discover_symmetry(model, ROW)
    assert order(symmetry) == f(7)
    assert symmetry.proof.passed
    assert [p.requires_grad for p in model.parameters()] == flags
    assert not any(p.is_inference() for p in model.parameters())


@torch.library.custom_op("workbench_cases::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x.sort(-1).values * torch.arange(x.shape[-1], dtype=x.dtype)


@mystery.register_fake
def _(x):
    return torch.empty_like(x)


class Middle(nn.Module):
    def forward(self, x):
        return mystery(x)


def test_an_operation_nobody_knows_freezes_both_sides_and_is_listed_by_its_module():
    model = nn.Sequential(nn.Linear(5, 6), Middle(), nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 2))
    symmetry = proved(model, ROW)
    assert order(symmetry) == f(7)
    assert sum(symmetry.unknown_ops.values()) == 1
    assert all("mystery" in name for name in symmetry.unknown_ops)
    reasons = {(p.tensor, p.axis): p.reason for p in symmetry.pinned}
    for place in (("0.weight", 0), ("0.bias", 0), ("2.weight", 1)):
        assert "mystery" in reasons[place]
        assert "in 1" in reasons[place]  # the module's path


@pytest.mark.parametrize("kernel", [1, 3])
def test_sampling_by_a_computed_grid_keeps_channels_free(kernel):
    """What makes the grid is pinned where the order of the sampled places is seen; each place's two coordinates are always.

    A convolution of 1 × 1 and a mean do not see it, so there the 16 places move together with the rows that compute them.
    """

    def forward(m, x):
        features = torch.relu(m.stem(x))
        grid = torch.tanh(m.grid(m.hidden(x.mean((2, 3))).relu())).view(-1, 4, 4, 2)
        return m.head(torch.relu(m.after(F.grid_sample(features, grid, align_corners=False))).mean((2, 3)))

    model = Net(
        forward,
        stem=nn.Conv2d(3, 6, 1),
        hidden=nn.Linear(3, 4),
        grid=nn.Linear(4, 32),
        after=nn.Conv2d(6, 5, kernel),
        head=nn.Linear(5, 2),
    )
    symmetry = proved(model, IMAGE)
    assert order(symmetry) == f(6) * f(4) * f(5) * (f(16) if kernel == 1 else 1)
    rows = symmetry.tensors["grid.weight"].layouts[0]
    if kernel == 1:
        assert isinstance(rows, Product)
        assert rows.children[-1] == Leaf(None, 2)
    else:
        assert rows == Leaf(None, 32)
        assert any(p.tensor == "grid.weight" and p.axis == 0 and p.reason for p in symmetry.pinned)


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2 + x.cumsum(-1)

    @staticmethod
    def backward(context, grad):
        return grad * 2


def test_an_autograd_function_of_ones_own_is_read_by_what_it_does():
    """Its forward sums along the units, in their order: that pins them, by the name of the operation."""
    model = Net(lambda m, x: m.c(torch.relu(m.b(Doubling.apply(m.a(x))))), a=nn.Linear(5, 6), b=nn.Linear(6, 7), c=nn.Linear(7, 2))
    symmetry = proved(model, ROW)
    assert order(symmetry) == f(7)
    reasons = {(p.tensor, p.axis): p.reason for p in symmetry.pinned}
    assert "cumsum" in reasons["a.weight", 0]


class Deep(nn.Module):
    """A UNet whose skips are all concatenated."""

    def __init__(self, depth):
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3 if i == 0 else 4, 4, 3, padding=1) for i in range(depth))
        self.up = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=1) for _ in range(depth - 1))
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        skips = []
        for i, layer in enumerate(self.down):
            x = torch.relu(layer(F.max_pool2d(x, 2) if i else x))
            skips.append(x)
        skips.pop()
        for layer in self.up:
            x = torch.relu(layer(torch.cat([skips.pop(), F.interpolate(x, scale_factor=2)], 1)))
        return self.head(x)


class Chain(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.stem, self.head = nn.Linear(5, 6), nn.Linear(6, 2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 6)) for _ in range(count))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Dense(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 + 2 * i, 2, 3, padding=1) for i in range(count))
        self.head = nn.Conv2d(3 + 2 * count, 2, 1)

    def forward(self, x):
        parts = [x]
        for layer in self.layers:
            parts.append(torch.relu(layer(torch.cat(parts, 1))))
        return self.head(torch.cat(parts, 1))


@pytest.mark.parametrize(
    ("model", "inputs", "theory"),
    [
        (Deep(6), (torch.randn(2, 3, 32, 32),), f(4) ** 11),
        (Chain(40), ROW, f(6) * f(4) ** 40),
        (Dense(24), IMAGE, f(2) ** 24),
    ],
    ids=["UNet of depth 6", "40 residual blocks", "24 dense layers"],
)
def test_many_skips_end_and_report_on_the_way(model, inputs, theory):
    """Listing paths would take time exponential in the skips, and not end. How long it takes, tests/benchmarks measure."""
    seen = []
    symmetry = discover_symmetry(model, inputs, progress=lambda *args, **kwargs: seen.append(args))
    assert order(symmetry) == theory
    assert symmetry.proof.passed
    assert len(seen) > 10


def test_several_inputs_and_nested_outputs_of_a_users_own_net():
    """A backbone with heads added by the user, two inputs by name, and outputs in a dict of tuples and lists."""

    def build():
        def forward(m, image, *, text):
            x = F.relu(m.bn(m.conv(image))).mean((2, 3))
            x = x + m.words(text)
            return {"classes": m.classes(x), "boxes": (m.low(x), [m.high(F.gelu(m.mid(x)))])}

        return Net(
            forward,
            conv=nn.Conv2d(3, 6, 3, bias=False),
            bn=nn.BatchNorm2d(6),
            words=nn.Linear(5, 6),
            classes=nn.Linear(6, 3),
            low=nn.Linear(6, 4),
            mid=nn.Linear(6, 5),
            high=nn.Linear(5, 4),
        )

    inputs = {"image": IMAGE[0], "text": ROW[0]}
    symmetry = proved(build(), inputs)
    assert order(symmetry) == f(6) * f(5)
    one, two = build().state_dict(), build().state_dict()
    assert symmetry.apply(symmetry.sample(0), one).keys() == symmetry.apply(symmetry.sample(0), two).keys()


class WindowAttention(nn.Module):
    """Three heads of 4 over windows of 2 × 2; the bias of every relative place is per head (arXiv 2103.14030)."""

    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 6, 2, stride=2), nn.Linear(6, 2)
        self.qkv, self.proj = nn.Linear(6, 36), nn.Linear(12, 6)
        self.relative_position_bias_table = nn.Parameter(torch.randn(9, 3))
        places = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        offsets = (places[:, :, None] - places[:, None]) + 1
        self.register_buffer("relative_position_index", offsets[0] * 3 + offsets[1])

    def forward(self, x):
        x = torch.roll(self.patches(x).permute(0, 2, 3, 1), (-1, -1), (1, 2))
        n, h, w, c = x.shape
        windows = x.view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(windows).reshape(-1, 4, 3, 3, 4).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(4, 4, 3).permute(2, 0, 1)
        y = ((q @ k.mT) / 2 + bias).softmax(-1) @ v
        windows = windows + self.proj(y.transpose(1, 2).reshape(-1, 4, 12))
        x = windows.view(n, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return self.head(torch.roll(x, (1, 1), (1, 2)).mean((1, 2)))


def test_heads_move_with_every_table_that_is_per_head():
    model = WindowAttention()
    symmetry = proved(model, IMAGE)
    assert order(symmetry) == f(6) * f(3) * f(4) ** 3 * f(4) ** 3
    places, heads = symmetry.tensors["relative_position_bias_table"].layouts
    assert places == Leaf(None, 9)
    for name, axis in (("proj.weight", 1), ("qkv.weight", 0)):
        assert set(factors(heads)) <= set(factors(symmetry.tensors[name].layouts[axis]))
    # the negative control: the table stays
    table = symmetry.tensors["relative_position_bias_table"]
    still = replace(table, layouts=(Leaf(None, 9), Leaf(None, 3)), role=FIXED)
    verdict = replace(symmetry, tensors={**symmetry.tensors, "relative_position_bias_table": still}).check(model, IMAGE)
    assert not verdict.passed
    assert verdict.max_relative_error > 1e-7
