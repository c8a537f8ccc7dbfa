"""What travels with the package: ``apps``, ``data`` and ``notebooks``.

In a wheel the three folders lie inside this one; in a checkout they lie at the top of the repository. Either way the apps are
imported as ``workbench.shipped.apps``, so that no top-level name is claimed on a user's machine.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE if (_HERE / "data").is_dir() else _HERE.parent.parent
__path__ = [str(_ROOT)]


def folder(name: str) -> Path:
    """The folder of shipped ``"apps"``, ``"data"`` or ``"notebooks"``. Raises FileNotFoundError where an install is incomplete."""
    path = _ROOT / name
    if not path.is_dir():
        raise FileNotFoundError(f"this installation has no {name} folder (looked in {path}); reinstall workbench")
    return path
