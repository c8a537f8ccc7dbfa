"""The arguments that name a matcher, what they stand for, and how a match ended, in words."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from workbench.cli import inputs
from workbench.errors import WorkbenchError
from workbench.options import parse_options

if TYPE_CHECKING:
    from workbench.matching import Alignment


def add_matching(parser: argparse.ArgumentParser) -> None:
    """``--matcher --seed --device --threads``."""
    parser.add_argument(
        "--matcher",
        default="weights",
        help="how to match, see `workbench methods`: name or name:field=value,…, as in spectral:rank=16 (default: %(default)s)",
    )
    inputs.add_seed(parser)
    inputs.add_device(parser)


def read_matcher(text: str) -> Any:
    """The matcher ``--matcher`` names, with values for its fields as in ``spectral:rank=16``."""
    from workbench.matching.fields import make_matcher

    name, _, rest = text.partition(":")
    return make_matcher(name, parse_options(rest))


def how_it_ended(alignment: Alignment) -> str:
    """Matcher, length of the search, data and whether it came to rest, in words that claim no optimum it did not look for."""
    sweeps = f"{alignment.sweeps} sweep{'s' * (alignment.sweeps != 1)}, " if alignment.sweeps else ""
    if alignment.converged:
        ended = "no single move is left (a local optimum of what it looks at)" if sweeps else "solved in one pass"
    else:
        ended = "stopped before it came to rest" if sweeps else "nothing was searched"
    return f"{alignment.settings['matcher']}: {sweeps}{alignment.seconds:.2f} s, {alignment.data_used}; {ended}"


def require_data_for(matcher: Any, pair: inputs.Pair) -> None:
    """Raise, before the long work, where the matcher looks at data and the pair comes without a task."""
    from workbench.matching.fields import which_matcher
    from workbench.matching.matcher import NEEDS, matcher_needs

    needs = matcher_needs(matcher)
    if pair.task is None and needs != "nothing":
        free = [line.name for line in which_matcher() if line.data.startswith("none") and not line.summary.startswith("Control")]
        raise WorkbenchError(
            f"The matcher {matcher.matcher_name!r} looks at {NEEDS[needs]}, and there is no task",
            expected="--task NAME, and --root FOLDER where its files are not embedded",
            cause=next((note for note in pair.notes if "random inputs" in note), "").partition(":")[0],
            next_step=f"name one, or use a matcher that needs no data: {', '.join(free)}",
        )
