"""``Recipe``: everything that decides how a network is trained, and the defaults for known pairs of architecture and task.

The defaults are those of the code of Git Re-Basin (arXiv 2209.04836) for MNIST and CIFAR-10.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from workbench.errors import WorkbenchError, unknown_name
from workbench.training.augment import AUGMENTATIONS

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("constant", "cosine")
WARMUP_START = 1e-6


@dataclass(frozen=True)
class Recipe:
    """epochs over the training split in batches of ``batch_size`` (the last may be shorter), in a fresh order each epoch.

    optimizer: adam, adamw (decoupled weight decay) or sgd; momentum belongs to sgd. weight_decay: coupled for adam and sgd.
    schedule: constant, or cosine to 0; ``warmup_epochs`` of linear growth from 1e-6 come first. augment: none, or affine (random
    scale .8–1.2, rotation ±30°, horizontal flip).
    """

    epochs: int = 20
    batch_size: int = 100
    optimizer: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    schedule: str = "constant"
    warmup_epochs: int = 0
    augment: str = "none"

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("schedule", self.schedule, SCHEDULES),
            ("augmentation", self.augment, AUGMENTATIONS),
        ):
            if name not in known:
                raise unknown_name(kind, str(name), known)
        for name, least in (("epochs", 0), ("batch_size", 1), ("warmup_epochs", 0), ("weight_decay", 0), ("momentum", 0)):
            if getattr(self, name) < least:
                raise WorkbenchError(f"{name} is {getattr(self, name)}", expected=f"{least} or more")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise WorkbenchError(f"lr is {self.lr}", expected="a positive learning rate")

    def learning_rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of step 0, 1, …: linear from 1e-6 to lr over the warm-up, then lr or ½ lr (1 + cos πu), u in [0, 1)."""
        warmup, total = self.warmup_epochs * steps_per_epoch, self.epochs * steps_per_epoch
        if step < warmup:
            return WARMUP_START + (self.lr - WARMUP_START) * step / warmup
        if self.schedule == "constant":
            return self.lr
        return 0.5 * self.lr * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))

    def make_optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimizer over ``parameters``."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        return kind(parameters, lr=self.lr, weight_decay=self.weight_decay)

    def override(self, **given: Any) -> Recipe:
        """This recipe with whatever is not None put in its place; another optimizer brings its own usual lr and momentum."""
        names = [field.name for field in fields(self)]
        for name in given:
            if name not in names:
                raise unknown_name("part of a recipe", name, names)
        changes = {name: value for name, value in given.items() if value is not None}
        if changes.get("optimizer", self.optimizer) != self.optimizer:
            usual = {"lr": 0.1, "momentum": 0.9} if changes["optimizer"] == "sgd" else {"lr": 1e-3, "momentum": 0.0}
            changes = {**usual, **changes}
        return replace(self, **changes)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


SGD = Recipe(batch_size=100, optimizer="sgd", lr=0.1, momentum=0.9, schedule="cosine", augment="affine")
DEFAULTS = {
    ("mlp", "digits"): Recipe(epochs=100, batch_size=50),
    ("convnet", "digits"): Recipe(epochs=30, batch_size=50),
    ("transformer", "digits"): Recipe(epochs=40, batch_size=50),
    ("mlp", "mnist"): Recipe(epochs=100, batch_size=500),
    ("mlp", "fashion-mnist"): Recipe(epochs=100, batch_size=500),
    ("mlp", "cifar10"): Recipe(epochs=100, batch_size=100, augment="affine"),
    ("vgg", "cifar10"): replace(SGD, epochs=100, weight_decay=5e-4, warmup_epochs=1),
    ("resnet", "cifar10"): replace(SGD, epochs=250, weight_decay=1e-4, warmup_epochs=5),
}


def default_recipe(architecture: str, task: str) -> Recipe:
    """The recipe for a pair of names; for a pair without one, Adam 1e-3, batch 100, 20 epochs."""
    return DEFAULTS.get((architecture, task), Recipe())
