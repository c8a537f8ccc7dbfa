"""Run notebooks and store their outputs, without the megabytes of JavaScript that drawing needs while a notebook runs.

python notebooks/store.py notebooks/01_tour.ipynb
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

LOADER = "application/vnd.holoviews_load.v0+json"
LARGE = 300_000  # characters; the pictures here have some tens of thousands


def store(path: Path) -> None:
    """Execute ``path`` from the top in its own folder and write it back; fails where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day, different in every run
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _kept(output)]
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


def _kept(output: nbformat.NotebookNode) -> bool:
    if output.output_type == "stream":
        return output.name != "stderr"
    data = output.get("data", {})
    return LOADER not in data and all(len(str(value)) < LARGE for value in data.values())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        store(Path(name))
