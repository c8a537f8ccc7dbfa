"""A served dashboard and a browser that may speak to nobody else.

The server is the real command in a process of its own, on a free port. Every request that leaves this machine is aborted and
recorded; a test that caused one fails at its end.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from workbench.architectures import architecture
from workbench.checkpoints import save_checkpoint

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
IDLE = "() => window.Bokeh && Bokeh.documents.length > 0 && Bokeh.documents.every(d => d.is_idle)"


def save_network(path: Path, seed: int, **options: int) -> None:
    """An untrained network with the metadata that training writes."""
    made = architecture("mlp", inputs=64, outputs=10, **options)
    metadata = {"architecture": made.to_json(), "task": "digits", "seed": str(seed)}
    save_checkpoint(made.build(seed=seed).state_dict(), path, metadata=metadata)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> Path:
    """An operator's folder: a small pair, a pair that is slow to match, one of another width, and a file that is no checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for seed in (0, 1):
        save_network(folder / f"small-seed{seed}.safetensors", seed, width=16, depth=2)
        save_network(folder / f"wide-seed{seed}.safetensors", seed, width=768, depth=4)
    save_network(folder / "other-width.safetensors", 0, width=24, depth=2)
    (folder / "broken.pt").write_text("<!DOCTYPE html><title>404</title>")
    return folder


@pytest.fixture(scope="session")
def server(checkpoints):
    """Address of a running dashboard that offers ``checkpoints`` beside the shipped models."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "workbench", "serve", "--port", str(port), "--checkpoints", str(checkpoints)]
    log = checkpoints / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
    try:
        _wait_until_up(f"http://localhost:{port}/liveness", process, log)
        yield f"http://localhost:{port}"
    finally:
        process.terminate()
        process.wait(20)


def _wait_until_up(url: str, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"the server ended: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server did not answer: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def chromium():
    """A running headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    executable = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if executable is None:
        pytest.skip("no Chromium on this machine; sh tests/chromium.sh installs it")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=executable, headless=True, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, server):
    """``visit()`` opens the dashboard in a session of its own and returns the page once it is idle."""
    contexts, outside = [], []

    def route(request_route) -> None:
        url = request_route.request.url
        if url.startswith((server, "data:", "blob:")):
            request_route.continue_()
        else:
            outside.append(url)
            request_route.abort()

    def visit(width: int = 1440, height: int = 900):
        context = chromium.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        contexts.append(context)
        context.route("**/*", route)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(server, wait_until="domcontentloaded")
        page.wait_for_function(IDLE)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not outside, f"the page asked for {outside}"
