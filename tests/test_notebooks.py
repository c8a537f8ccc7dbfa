"""A notebook that was never run compares nothing under nbval: stored numbers are required, and few cells may be exempt."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
EXEMPT = re.compile(r"NBVAL_(IGNORE_OUTPUT|SKIP)|PYTEST_VALIDATE_IGNORE_OUTPUT")


def exempt(cell) -> bool:
    tags = cell["metadata"].get("tags", [])
    return bool(EXEMPT.search("".join(cell["source"]))) or any(tag.startswith("nbval-") for tag in tags)


def compared_text(cell) -> str:
    """The part of a cell's outputs that nbval compares: standard output and text representations."""
    text = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream" and output["name"] == "stdout":
            text += output["text"]
        text += output.get("data", {}).get("text/plain", [])
    return "".join(text)


def faults(notebook) -> list[str]:
    """Why pytest would not really test this notebook."""
    found = []
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
    kernel = notebook["metadata"].get("kernelspec", {}).get("name")
    if kernel != "python3":
        found.append(f"the kernel is {kernel!r}, not 'python3'")
    for number, cell in enumerate(code, 1):
        if cell["execution_count"] != number and not exempt(cell):
            found.append(f"code cell {number} has execution count {cell['execution_count']}: run all cells from the top")
        for output in cell["outputs"]:
            if output["output_type"] == "error":
                found.append(f"code cell {number} stores an error")
            if output["output_type"] == "stream" and output["name"] == "stderr":
                found.append(f"code cell {number} stores something from the error stream")
            if re.search(r"/home/|/root/|/Users/", compared_text(cell)):
                found.append(f"code cell {number} prints a path of somebody's machine")
    compared = [cell for cell in code if not exempt(cell)]
    if not any(re.search(r"\d\.\d", compared_text(cell)) for cell in compared):
        found.append("no numeric result is compared")
    if len(compared) < len(code) / 2:
        found.append("more than half of the cells are exempt from comparison")
    return found


def test_there_is_a_tour():
    assert (FOLDER / "01_tour.ipynb") in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_really_tested(path):
    assert not faults(json.loads(path.read_text()))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_stays_small(path):
    assert path.stat().st_size < 2_000_000, "stored pictures are too large for a repository"


def test_the_lint_can_fail():
    """The negative control: cleared outputs, a foreign kernel and an exempt cell are all seen."""
    cell = {"cell_type": "code", "source": ["1 / 3"], "execution_count": None, "outputs": [], "metadata": {}}
    cleared = {"cells": [cell], "metadata": {"kernelspec": {"name": "python3"}}}
    assert len(faults(cleared)) == 2
    assert any("kernel" in text for text in faults({**cleared, "metadata": {"kernelspec": {"name": "conda-env-mine-py"}}}))
    hidden = {**cell, "source": ["# NBVAL_IGNORE_OUTPUT\n", "1 / 3"]}
    assert any("exempt" in text for text in faults({**cleared, "cells": [hidden]}))


@pytest.mark.parametrize(("stored", "code"), [("0.25", 0), ("0.26", 1)])
def test_a_changed_number_is_noticed(tmp_path, stored, code):
    """The same comparison that plain ``pytest`` makes of the notebooks, on a right and on a wrong stored number."""
    cell = nbformat.v4.new_code_cell("print(f'{1 / 4} in 0.1 s')", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{stored} in 7.5 s\n")]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=metadata), tmp_path / "small.ipynb")
    for name in ("conftest.py", "sanitize.cfg"):
        shutil.copy(FOLDER / name, tmp_path)
    words = ["-m", "pytest", "-q", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", str(tmp_path)]
    assert subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True).returncode == code


def test_pytest_runs_the_notebooks(pytestconfig):
    assert pytestconfig.getoption("nbval"), "addopts must hold --nbval, so that plain `pytest` runs the notebooks"
