"""Which singular directions of A and B agree, layer by layer, as they are and after alignment, beside unrelated networks."""

from __future__ import annotations

import argparse

from workbench.cli import inputs

HELP = "agreement of singular vectors, layer by layer"


def configure(parser: argparse.ArgumentParser) -> None:
    inputs.add_pair(parser)
    inputs.add_matching(parser)
    inputs.add_spectra(parser)
    parser.add_argument("--out", metavar="FILE", help="write the figures as netCDF")


def run(arguments: argparse.Namespace) -> int:
    raise NotImplementedError
