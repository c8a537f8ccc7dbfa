"""Start the dashboard and leave it running until Ctrl-C."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

from workbench.cli import console, inputs
from workbench.errors import WorkbenchError

HELP = "start the dashboard in the browser"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=5006, help="port to listen on (default: %(default)s)")
    parser.add_argument(
        "--address",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s, only this machine; 0.0.0.0 lets others in, without a password)",
    )
    parser.add_argument(
        "--checkpoints", metavar="DIR", help="folder whose checkpoints the dashboard offers, beside the shipped ones"
    )
    parser.add_argument("--data", metavar="DIR", help="folder with the files of tasks that are not embedded (MNIST, CIFAR-10)")
    parser.add_argument(
        "--model", help="architecture of checkpoints that do not say theirs: name:key=value,… or package.module:factory"
    )
    parser.add_argument("--show", action="store_true", help="open a browser window")


def run(arguments: argparse.Namespace) -> int:
    for option in ("checkpoints", "data"):
        given = getattr(arguments, option)
        if given is not None and not Path(given).is_dir():
            raise WorkbenchError(f"There is no folder {given}", expected=f"a folder for --{option}")
    if arguments.model is not None:
        inputs.read_architecture(arguments.model)
    _require_free(arguments.address, arguments.port)
    from workbench.shipped.apps.server import serve

    host = "localhost" if arguments.address in {"127.0.0.1", "0.0.0.0", "::1"} else arguments.address
    url = f"http://{host}:{arguments.port}"
    console.answer(arguments, {"url": url}, f"dashboard at {url} (Ctrl-C stops it)")
    serve(
        port=arguments.port,
        address=arguments.address,
        checkpoints=arguments.checkpoints,
        data=arguments.data,
        model=arguments.model,
        show=arguments.show,
    )
    return 0


def _require_free(address: str, port: int) -> None:
    """Say that the port is taken before the seconds that importing the dashboard needs."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OverflowError:
            raise WorkbenchError(f"There is no port {port}", expected="a number from 1 to 65535") from None
        except OSError as error:
            raise WorkbenchError(
                f"Cannot listen on {address}, port {port} ({error.strerror})",
                cause="another program, perhaps a dashboard started earlier, uses the port",
                next_step="stop it, or pass another --port",
            ) from None
