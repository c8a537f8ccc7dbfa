"""Errors that teach: what was found, what was expected, the likely cause, and the next thing to do.

Every mistake a user can make ends in a ``WorkbenchError``; the command line and the dashboard show its text and no traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WorkbenchError(ValueError):
    """A mistake the user can mend. ``str(error)`` is a complete message of up to four sentences.

    found: what was met; expected: what should have been there; cause: why it is probably so; next_step: what to do now.
    """

    def __init__(self, found: str, *, expected: str = "", cause: str = "", next_step: str = "") -> None:
        self.found, self.expected, self.cause, self.next_step = found, expected, cause, next_step
        parts = [found]
        if expected:
            parts.append(f"Expected: {expected}")
        if cause:
            parts.append(f"Likely cause: {cause}")
        if next_step:
            parts.append(f"Next: {next_step}")
        super().__init__(" ".join(part if part.endswith((".", "?", "!")) else part + "." for part in parts))


class Cancelled(Exception):
    """Raised by a progress callback to stop a computation; the computation leaves nothing half written."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> WorkbenchError:
    """The error for a name nobody registered: it lists the known ones and guesses which was meant.

    >>> str(unknown_name("matcher", "weigths", ["weights", "identity"]))
    "No matcher is called 'weigths'. Expected: one of identity, weights. Next: did you mean 'weights'?"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return WorkbenchError(
        f"No {kind} is called {name!r}",
        expected=f"one of {', '.join(names)}" if names else f"a registered {kind}, and none is registered",
        next_step=f"did you mean {close[0]!r}?" if close else "",
    )
