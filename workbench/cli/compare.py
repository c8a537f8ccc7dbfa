"""The whole road for two checkpoints: symmetry, alignment, proof that the function was kept, loss between them, spectra.

Without A and B it compares a shipped pair. With --out it leaves a report that opens offline, the numbers, and aligned B.
"""

from __future__ import annotations

import argparse

from workbench.cli import inputs

HELP = "align two checkpoints and compare them: barriers, spectra, report"


def configure(parser: argparse.ArgumentParser) -> None:
    inputs.add_pair(parser)
    inputs.add_matching(parser)
    inputs.add_points(parser)
    inputs.add_spectra(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="write report.html, comparison.nc, comparison.json and aligned.safetensors here"
    )


def run(arguments: argparse.Namespace) -> int:
    raise NotImplementedError
