"""The wheel is complete: built, unpacked elsewhere, and used from a folder that knows nothing of the repository."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The wheel unpacked: what ``pip install --no-deps --target`` makes of a pure-Python wheel, without asking an index."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed: Path, folder: Path, *command: str, **options) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, **options)


def test_it_claims_no_name_but_workbench(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"workbench"}
    for wanted in ("apps/server.py", "data/manifest.json", "notebooks/01_tour.ipynb"):
        assert f"workbench/shipped/{wanted}" in names
    assert not [name for name in names if "/tests/" in name or "__pycache__" in name]


def test_the_unpacked_copy_is_what_runs(installed, tmp_path):
    done = run(installed, tmp_path, "-c", "import workbench; print(workbench.__file__)", check=True)
    assert Path(done.stdout.strip()).is_relative_to(installed)


def test_no_apps_at_the_top(installed, tmp_path):
    code = f"import sys; sys.path = [p for p in sys.path if p != {str(ROOT)!r}]\nimport apps"
    assert "ModuleNotFoundError" in run(installed, tmp_path, "-c", code, check=False).stderr


def test_compare_runs_from_any_folder(installed, tmp_path):
    out = tmp_path / "out"
    done = run(
        installed,
        tmp_path,
        "-m",
        "workbench",
        "compare",
        "--json",
        "--points",
        "5",
        "--no-null",
        "--out",
        str(out),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["alignment"]["function_kept"]["passed"] is True
    assert {path.name for path in out.iterdir()} == {"report.html", "comparison.nc", "comparison.json", "aligned.safetensors"}


def test_the_dashboard_answers(installed, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    log = (tmp_path / "log").open("w+")
    server = subprocess.Popen(
        [sys.executable, "-m", "workbench", "serve", "--port", str(port)], cwd=tmp_path, env=environment, stdout=log, stderr=log
    )
    try:
        for _ in range(240):
            assert server.poll() is None, (tmp_path / "log").read_text()
            try:
                with urllib.request.urlopen(f"http://localhost:{port}/", timeout=30) as answer:
                    page = answer.read().decode()
                break
            except OSError:
                time.sleep(0.5)
        else:
            pytest.fail(f"no answer: {(tmp_path / 'log').read_text()}")
    finally:
        server.terminate()
        server.wait(timeout=30)
        log.close()
    assert "workbench" in page.lower()
