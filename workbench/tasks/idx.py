"""MNIST and Fashion-MNIST from their publishers' idx files, raw or gzipped."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import torch

from workbench.disk import user_path
from workbench.errors import WorkbenchError
from workbench.tasks.base import TASKS, Task

SIZES = {"train": 60_000, "test": 10_000}
STEMS = {"train": "train", "test": "t10k"}


@TASKS.register("mnist", reference="http://yann.lecun.com/exdb/mnist")
def mnist(root: str | Path, flatten: bool = False) -> Task:
    """MNIST from idx files in ``root``: 60,000 train and 10,000 test images, pixel / 255.

    x is ``(N, 1, 28, 28)``, or ``(N, 784)`` with ``flatten=True``; no mean is subtracted. The four files are
    ``{train,t10k}-images-idx3-ubyte`` and ``{train,t10k}-labels-idx1-ubyte``, raw or with ``.gz``.
    """
    return _load("mnist", user_path(root), flatten)


@TASKS.register("fashion-mnist", reference="arXiv:1708.07747")
def fashion_mnist(root: str | Path, flatten: bool = False) -> Task:
    """Fashion-MNIST from idx files in ``root``: same files, sizes and scaling as MNIST."""
    return _load("fashion-mnist", user_path(root), flatten)


def _load(name: str, root: Path, flatten: bool) -> Task:
    splits = {}
    for split, stem in STEMS.items():
        images = read_idx(_find(name, root, f"{stem}-images-idx3-ubyte"), (SIZES[split], 28, 28))
        labels = read_idx(_find(name, root, f"{stem}-labels-idx1-ubyte"), (SIZES[split],))
        if labels.max() > 9:
            raise WorkbenchError(f"A label in the {split} split of {name} is {labels.max()}", expected="labels 0 to 9")
        x = torch.from_numpy(images).to(torch.float32).div_(255)
        x = x.reshape(-1, 784) if flatten else x.unsqueeze(1)
        splits[split] = (x, torch.from_numpy(labels).long())
    return Task(name, splits, notes=("values divided by 255",))


def _find(name: str, root: Path, file: str) -> Path:
    # Some mirrors write a dot where the publisher writes a dash; torchvision keeps the files two folders down.
    dotted = file.replace("-idx", ".idx")
    for folder in (root, root / name, root / "raw", root / "MNIST" / "raw", root / "FashionMNIST" / "raw"):
        for candidate in (file, f"{file}.gz", dotted, f"{dotted}.gz"):
            if (folder / candidate).is_file():
                return folder / candidate
    wanted = ", ".join(f"{stem}-{kind}[.gz]" for stem in STEMS.values() for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    raise WorkbenchError(
        f"{root} has no {file} or {file}.gz" if root.is_dir() else f"There is no folder {root}",
        expected=f"a folder with the publisher's files: {wanted}",
        next_step=f'task("{name}", root=...) with the folder that holds them',
    )


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The unsigned bytes of one idx file as an array of ``shape``; gzip is recognised by content.

    Raises ``WorkbenchError`` where the header or the length is not that of ``shape``.
    """
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError) as error:
            raise WorkbenchError(f"{path} is a damaged gzip file ({error})", next_step="download it again") from error
    header = 4 + 4 * len(shape)
    if len(content) < header or content[:4] != bytes((0, 0, 8, len(shape))):
        raise WorkbenchError(
            f"{path} does not begin like an idx file of bytes with {len(shape)} axes (it begins {content[:4].hex(' ')})",
            cause="another file under this name, or a download page saved in its place",
        )
    found = struct.unpack(f">{len(shape)}I", content[4:header])
    if found != shape:
        raise WorkbenchError(f"{path} holds an array of shape {found}", expected=f"{shape}", cause="the files are mixed up")
    if len(content) != header + int(np.prod(shape)):
        raise WorkbenchError(
            f"{path} holds {len(content) - header} bytes of data",
            expected=f"{int(np.prod(shape))}",
            cause="the download stopped early",
            next_step="download it again",
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()
