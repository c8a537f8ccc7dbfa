"""``workbench serve``: the dashboard on one port, on loopback unless told otherwise, with every asset served from here."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import panel as pn
import torch

from workbench.architectures import architecture
from workbench.errors import WorkbenchError
from workbench.symmetry import discover_symmetry
from workbench.tasks import task

from .pages import PAGES
from .settings import Settings
from .shell import TITLE, new_session

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def settings_for(
    checkpoints: str | os.PathLike[str] | None, data: str | os.PathLike[str] | None, model: str | None
) -> Settings:
    """Check what the operator named. Raises WorkbenchError for a folder that is not there."""
    folders = {}
    for name, given in (("checkpoints", checkpoints), ("data", data)):
        folder = None if given is None else Path(given).expanduser().resolve()
        if folder is not None and not folder.is_dir():
            raise WorkbenchError(f"{given} is not a folder", expected=f"--{name} with a folder that exists")
        folders[name] = folder
    return Settings(folders["checkpoints"], folders["data"], model)


def start(
    port: int = 5006,
    address: str = "127.0.0.1",
    *,
    checkpoints: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    model: str | None = None,
    show: bool = False,
    **options: Any,
) -> Any:
    """The server, listening but not yet looping (``server.run_until_shutdown()``).

    options: passed to ``panel.io.server.get_server``.
    """
    settings = settings_for(checkpoints, data, model)
    list(PAGES)  # import every page now: a broken one must stop the server, not the first visitor
    # The networks shown here are small: two threads that wait for each other on two busy cores are far slower than one.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 4))
    names = {"localhost", "127.0.0.1", address} if address in LOOPBACK else {"localhost", "127.0.0.1", address, _hostname()}
    origins = [f"{name}:{port}" for name in sorted(names)]
    try:
        return pn.io.server.get_server(
            {"/": lambda: new_session(settings)},  # Panel knows functions, not functools.partial
            port=port,
            address=address,
            websocket_origin=options.pop("websocket_origin", origins),
            title={"/": TITLE},
            liveness=True,
            show=show,
            # A page whose web socket opens later than this is rendered again with style sheets from outside.
            unused_session_lifetime_milliseconds=30_000,
            **options,
        )
    except OSError as error:
        raise WorkbenchError(
            f"Port {port} on {address} cannot be opened ({error.strerror or error})",
            cause="another server is running there",
            next_step="pass another --port, or stop the other server",
        ) from None


def serve(
    port: int = 5006,
    address: str = "127.0.0.1",
    checkpoints: str | os.PathLike[str] | None = None,
    show: bool = False,
    data: str | os.PathLike[str] | None = None,
    model: str | None = None,
) -> None:
    """Serve until interrupted. Only files under ``checkpoints`` and the shipped models are ever offered."""
    threading.Thread(target=_warm, name="warm", daemon=True).start()
    server = start(port, address, checkpoints=checkpoints, data=data, model=model, show=show)
    try:
        server.run_until_shutdown()
    except KeyboardInterrupt:
        server.stop()


def _warm() -> None:
    """Pay for the lazy imports of export and of the embedded data now, and not when the first visitor presses the button."""
    embedded = task("digits")
    discover_symmetry(architecture("mlp", inputs=64, outputs=10, width=4, depth=1).build(), embedded.example_inputs)


def _hostname() -> str:
    import socket

    return socket.gethostname()
