"""CIFAR-10 from the publisher's Python batches (read without running any code in them) or from one ``.npz``."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workbench.disk import user_path
from workbench.errors import WorkbenchError
from workbench.tasks.base import TASKS, Task

SIZES = {"train": 50_000, "test": 10_000}
BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
# ImageNet's channel means and deviations, which the Git Re-Basin code uses on CIFAR as well.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@TASKS.register("cifar10", reference="https://www.cs.toronto.edu/~kriz/cifar.html")
def cifar10(root: str | Path, normalise: bool = True) -> Task:
    """CIFAR-10 from files in ``root``: 50,000 train and 10,000 test colour images, x ``(N, 3, 32, 32)``.

    x = pixel / 255, and with ``normalise`` (default) (x − mean) / std per channel with **ImageNet's** statistics
    (.485 .456 .406; .229 .224 .225), as in the Git Re-Basin code. ``root`` is an ``.npz`` with x_train, y_train, x_test, y_test
    (uint8 images, NHWC), a folder with one, or the folder with data_batch_1…5 and test_batch.
    """
    arrays = _find(user_path(root))
    splits = {split: _tensors(split, *arrays[split], normalise) for split in SIZES}
    scaling = "values divided by 255" + (", ImageNet mean and deviation" if normalise else "")
    return Task("cifar10", splits, notes=(scaling,))


def _tensors(split: str, images: np.ndarray, labels: np.ndarray, normalise: bool) -> tuple[Tensor, Tensor]:
    if images.shape != (SIZES[split], 32, 32, 3) or images.dtype != np.uint8 or labels.size != SIZES[split]:
        raise WorkbenchError(
            f"The {split} split of cifar10 holds {images.dtype} images {images.shape} and {labels.size} labels",
            expected=f"uint8 images ({SIZES[split]}, 32, 32, 3) and as many labels",
        )
    labels = labels.reshape(-1).astype(np.int64)
    if labels.min() < 0 or labels.max() > 9:
        raise WorkbenchError(f"Labels of the {split} split go from {labels.min()} to {labels.max()}", expected="0 to 9")
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).to(torch.float32).div_(255)
    if normalise:
        x.sub_(torch.tensor(MEAN).view(1, 3, 1, 1)).div_(torch.tensor(STD).view(1, 3, 1, 1))
    return x, torch.from_numpy(labels)


def _find(root: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    archives = (
        [root] if root.suffix == ".npz" else [root / "cifar10.npz", root / "cifar10" / "cifar10.npz", root / "cifar-10.npz"]
    )
    for path in archives:
        if path.is_file():
            return _read_npz(path)
    for folder in (root, root / "cifar-10-batches-py", root / "cifar10"):
        if (folder / "test_batch").is_file():
            return {split: _read_batches([folder / name for name in names]) for split, names in BATCHES.items()}
    raise WorkbenchError(
        f"{root} holds no CIFAR-10" if root.exists() else f"There is no {root}",
        expected="cifar10.npz (x_train, y_train, x_test, y_test), or data_batch_1 … data_batch_5 and test_batch",
        next_step='task("cifar10", root=...) with the file or folder that holds them',
    )


def _read_npz(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in archive]
            if missing:
                raise WorkbenchError(
                    f"{path} has no {', '.join(missing)} (it has {', '.join(archive.files)})",
                    expected="x_train, y_train, x_test, y_test",
                )
            return {split: (archive[f"x_{split}"], archive[f"y_{split}"]) for split in SIZES}
    except WorkbenchError:
        raise
    except Exception as error:  # zipfile, zlib and numpy each raise their own kind for a damaged archive
        raise WorkbenchError(
            f"{path} cannot be read as an .npz of plain arrays ({error})", next_step="download it again"
        ) from error


def _read_batches(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = [], []
    for path in paths:
        if not path.is_file():
            raise WorkbenchError(f"{path} is missing", expected="data_batch_1 … data_batch_5 and test_batch in one folder")
        try:
            content = _ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
            images.append(np.asarray(content[b"data"]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels.append(np.asarray(content[b"labels"]))
        except WorkbenchError:
            raise
        except Exception as error:  # a damaged pickle may raise almost anything
            raise WorkbenchError(
                f"{path} cannot be read as a CIFAR-10 batch ({type(error).__name__}: {error})", next_step="download it again"
            ) from error
    return np.concatenate(images), np.concatenate(labels)


class _ArrayUnpickler(pickle.Unpickler):
    """Rebuilds NumPy arrays and nothing else: a batch that names any other class is refused, so no code in it can run."""

    ALLOWED = frozenset(
        (module, name)
        for module, name in (
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        )
    )

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self.ALLOWED:
            raise WorkbenchError(
                f"The file asks to run {module}.{name} while it is read, which a CIFAR-10 batch never does",
                expected="arrays and numbers only",
                next_step="do not use this file; download it from the publisher",
            )
        module = module.replace("numpy.core", "numpy._core")  # the same function, under its present name
        return super().find_class(module, name)
