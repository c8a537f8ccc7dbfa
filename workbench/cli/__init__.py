"""The command line: ``workbench COMMAND``, one module of this package per command.

Exit codes: 0 fine, 1 a check failed (the function was not kept, a proof failed), 2 wrong use, 130 stopped by Ctrl-C. A mistake
of the user ends in one message on the error stream and no traceback. Only the answer goes to the standard output.

A command module has ``HELP`` (one line), ``configure(parser)`` and ``run(arguments) -> exit code``; it imports what computes
inside ``run``, so that ``workbench --help`` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from workbench.cli import console
from workbench.errors import Cancelled, WorkbenchError, unknown_name

FINE, CHECK_FAILED, WRONG_USE, STOPPED = 0, 1, 2, 130
COMMANDS = ("serve", "compare", "symmetry", "align", "barrier", "spectra", "train", "methods")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, every command configured by its module."""
    parser = argparse.ArgumentParser(
        prog="workbench",
        description="Are these trained networks the same solution, up to the symmetries of their architecture?",
        epilog="`workbench compare` without arguments compares a pair that is shipped with the package.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"workbench.cli.{name}")
        sub = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        sub.add_argument("--json", action="store_true", help="print the answer as one JSON object")
        module.configure(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; ``argv`` defaults to the process's own arguments. Returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
            raise unknown_name("command", argv[0], COMMANDS)
        arguments = build_parser().parse_args(argv)
        with console.answers_only():
            return arguments.run(arguments)
    except SystemExit as stop:  # argparse: 0 after --help, 2 after wrong use
        return WRONG_USE if stop.code is None else int(stop.code)
    except WorkbenchError as error:
        console.error(str(error))
        return WRONG_USE
    except BrokenPipeError:  # the reader of our output went away (`| head`): nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except OSError as error:
        console.error(f"{error.filename or 'a file'}: {error.strerror or error}.")
        return WRONG_USE
    except (Cancelled, KeyboardInterrupt):
        console.error("stopped before the end; nothing was written.")
        return STOPPED
