"""Architectures in plain torch, which need no other library."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import PLAIN, Catalogue, image, tokens

CATALOGUE = Catalogue(PLAIN)


def conv(inputs: int, outputs: int, kernel: int = 3, **options: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, **options), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class UNet(nn.Module):
    """Every level is joined to the way back up (arXiv 1505.04597)."""

    def __init__(self, depth: int, width: int = 4) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(depth + 1)]
        self.stem = conv(3, width)
        self.down = nn.ModuleList([conv(a, b) for a, b in itertools.pairwise(sizes)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(sizes)])
        self.join = nn.ModuleList([conv(2 * a, a) for a in sizes[:-1]])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        levels = []
        for down in self.down:
            levels.append(x)
            x = down(F.max_pool2d(x, 2))
        for up, join, level in reversed(list(zip(self.up, self.join, levels, strict=True))):
            x = join(torch.cat([level, up(x)], 1))
        return self.head(x)


class DenseNet(nn.Module):
    """One block: each layer reads all before it (arXiv 1608.06993)."""

    def __init__(self, layers: int, growth: int = 4, stem: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 3, padding=1)
        self.layers = nn.ModuleList()
        for i in range(layers):
            width = stem + i * growth
            self.layers.append(
                nn.Sequential(
                    nn.BatchNorm2d(width), nn.ReLU(), conv(width, 2 * growth, 1), nn.Conv2d(2 * growth, growth, 3, padding=1)
                )
            )
        self.head = nn.Linear(stem + layers * growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(x.mean((2, 3)))


class Residual(nn.Module):
    """Blocks of two convolutions on one stream (arXiv 1512.03385)."""

    def __init__(self, blocks: int, width: int = 8) -> None:
        super().__init__()
        self.stem = conv(3, width)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(conv(width, width - 2), nn.Conv2d(width - 2, width, 3, padding=1), nn.BatchNorm2d(width))
                for _ in range(blocks)
            ]
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = F.relu(x + block(x))
        return self.head(x.mean((2, 3)))


class PaddedShortcut(nn.Module):
    """A shortcut without parameters: every second position, and zeros for the new channels (arXiv 1512.03385, option A)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = conv(3, 4), conv(4, 6, stride=2), conv(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)) + self.b(self.a(x))).mean((2, 3)))


class StateSpace(nn.Module):
    """A selective scan in the plain: one recurrence a channel and state (arXiv 2312.00752)."""

    def __init__(self, width: int = 8, inner: int = 10, state: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(19, width)
        self.into, self.out = nn.Linear(width, 2 * inner), nn.Linear(inner, width)
        self.conv = nn.Conv1d(inner, inner, 3, groups=inner, padding=2)
        self.select, self.step = nn.Linear(inner, 2 * state + 4), nn.Linear(4, inner)
        self.log_a, self.skip = nn.Parameter(torch.rand(inner, state)), nn.Parameter(torch.ones(inner))
        self.norm, self.head, self.sizes = nn.RMSNorm(width), nn.Linear(width, 19), (4, state, state)

    def forward(self, ids: Tensor) -> Tensor:
        stream = self.embed(ids)
        x, gate = self.into(self.norm(stream)).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., : ids.shape[1]]).transpose(1, 2)
        step, b, c = self.select(x).split(self.sizes, -1)
        step = F.softplus(self.step(step))[..., None]
        decay, drive = torch.exp(-step * self.log_a.exp()), step * b[:, :, None] * x[..., None]
        state, out = torch.zeros_like(drive[:, 0]), []
        for t in range(ids.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            out.append((state * c[:, t, None]).sum(-1))
        y = (torch.stack(out, 1) + self.skip * x) * F.silu(gate)
        return self.head(stream + self.out(y))


class Shuffle(nn.Module):
    """Grouped convolutions with a channel shuffle between them (arXiv 1707.01083)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = conv(3, 8), conv(8, 8, 1, groups=2), conv(8, 8, groups=2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(F.channel_shuffle(self.a(self.stem(x)), 2)).mean((2, 3)))


class Attend(nn.Module):
    """Sinks, a learned bias a head and a sub-layer shared by all layers (arXiv 1909.11942, 2309.17453)."""

    def __init__(self, width: int = 8, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.heads, self.layers = heads, layers
        self.embed, self.head = nn.Embedding(19, width), nn.Linear(width, 19)
        self.qkv, self.out, self.sink = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Parameter(torch.randn(heads))
        self.bias, self.norm = nn.Parameter(torch.randn(heads, 5, 5)), nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        n, t, c = x.shape
        for _ in range(self.layers):
            q, k, v = self.qkv(self.norm(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-1, -2) / 2 + self.bias
            sink = self.sink[:, None, None].expand(n, -1, t, 1)
            weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
            x = x + self.out((weights @ v).transpose(1, 2).reshape(n, t, c))
        return self.head(x)


def generator() -> nn.Sequential:
    """Latent vector to image (arXiv 1511.06434)."""
    layers: list[nn.Module] = []
    for a, b in ((6, 12), (12, 8)):
        layers += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(nn.Linear(5, 6 * 16), nn.Unflatten(1, (6, 4, 4)), *layers, nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh())


def discriminator() -> nn.Sequential:
    norm = torch.nn.utils.parametrizations.weight_norm
    return nn.Sequential(
        norm(nn.Conv2d(3, 6, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        nn.Conv2d(6, 8, 4, 2, 1),
        nn.InstanceNorm2d(8, affine=True),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(128, 1),
    )


def autoencoder() -> nn.Sequential:
    sizes = (20, 12, 3, 12, 20)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.SELU()]
    return nn.Sequential(*layers[:-1])


def vgg(plan: Sequence[int | str] = (6, "M", 8, 10, "M")) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = 3
    for item in plan:
        layers += [nn.MaxPool2d(2)] if item == "M" else [nn.Conv2d(width, item, 3, padding=1), nn.ReLU()]
        width = width if item == "M" else item
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(160, 12), nn.ReLU(), nn.Linear(12, 3))


def mixer() -> nn.Sequential:
    """Pixel shuffle and its inverse, a positional convolution, a gated unit."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 1),
        nn.PixelUnshuffle(2),
        nn.Conv2d(24, 16, 3, padding=1),
        nn.GLU(1),
        nn.PixelShuffle(2),
        nn.Conv2d(2, 5, 1),
        nn.GELU(),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(5, 2, 1),
    )


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.embed, self.cell, self.head = (
            nn.Embedding(19, 5),
            cell(5, 6, 2, batch_first=True, bidirectional=True),
            nn.Linear(12, 3),
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.cell(self.embed(ids))[0])


CONV, SEQUENCE = "convolutional", "sequence"
CATALOGUE.add("UNet", CONV, lambda: (UNet(3), (image(16),)), floor=0.99)
CATALOGUE.add("DenseNet block", CONV, lambda: (DenseNet(5), (image(8),)), floor=0.99)
CATALOGUE.add("residual network", CONV, lambda: (Residual(3), (image(8),)), floor=0.99)
CATALOGUE.add("residual network, padded shortcut", CONV, lambda: (PaddedShortcut(), (image(8),)), floor=0.99)
CATALOGUE.add("VGG", CONV, lambda: (vgg(), (image(16),)), floor=0.99)
CATALOGUE.add("ShuffleNet unit", CONV, lambda: (Shuffle(), (image(8),)), floor=0.99)
CATALOGUE.add("DCGAN generator", CONV, lambda: (generator(), (torch.randn(2, 5),)), floor=0.99)
CATALOGUE.add("discriminator, instance norm, weight norm", CONV, lambda: (discriminator(), (image(16),)), floor=0.99)
CATALOGUE.add("pixel shuffle, GLU, upsampling", CONV, lambda: (mixer(), (image(8),)), floor=0.95)
CATALOGUE.add("autoencoder", "dense", lambda: (autoencoder(), (torch.randn(2, 20),)), floor=0.95)
CATALOGUE.add("selective state space", SEQUENCE, lambda: (StateSpace(), (tokens(),)), floor=0.95)
CATALOGUE.add("shared attention with sinks and biases", SEQUENCE, lambda: (Attend(), (tokens(),)), floor=0.95)
CATALOGUE.add("LSTM, two layers, both directions", SEQUENCE, lambda: (Recurrent(nn.LSTM), (tokens(),)), floor=0.99)
CATALOGUE.add("GRU, two layers, both directions", SEQUENCE, lambda: (Recurrent(nn.GRU), (tokens(),)), floor=0.99)
CATALOGUE.add(
    "nn.Transformer encoder",
    SEQUENCE,
    lambda: (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
        ),
        (torch.randn(2, 5, 8),),
    ),
    floor=0.85,
)
CATALOGUE.add(
    "nn.Transformer",
    SEQUENCE,
    lambda: (nn.Transformer(8, 2, 1, 1, 12, batch_first=True), (torch.randn(2, 5, 8), torch.randn(2, 4, 8))),
    floor=0.85,
)
