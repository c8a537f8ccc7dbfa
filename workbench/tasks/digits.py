"""The embedded task: scikit-learn's 1797 handwritten digits of 8×8 pixels, so that everything runs without a download."""

from __future__ import annotations

import numpy as np
import torch

from workbench.tasks.base import TASKS, Task

TRAIN = 1400


@TASKS.register("digits", reference="https://archive.ics.uci.edu/dataset/80")
def digits(flatten: bool = True) -> Task:
    """Handwritten digits, 8×8, ten classes: 1400 train and 397 test examples, embedded.

    x is (grey level 0…16) / 16, so in [0, 1]: ``(N, 64)``, or ``(N, 1, 8, 8)`` with ``flatten=False``. The split is the first
    1400 of ``numpy.random.default_rng(0).permutation(1797)`` against the rest.
    """
    from sklearn.datasets import load_digits  # here, so that `import workbench` stays light

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.from_numpy((images[order] / 16).astype(np.float32))
    y = torch.from_numpy(labels[order].astype(np.int64))
    if not flatten:
        x = x.reshape(-1, 1, 8, 8)
    return Task("digits", {"train": (x[:TRAIN], y[:TRAIN]), "test": (x[TRAIN:], y[TRAIN:])}, notes=("values divided by 16",))
