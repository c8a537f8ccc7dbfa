"""Prints and writes the table: ``PYTHONPATH=tests python -m zoo [LIBRARY …] [--only TEXT] [--write]``."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
from pathlib import Path

import torch

from zoo.catalogue import CATALOGUES
from zoo.table import COLUMNS, Row, run, summary, text


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo", description=__doc__)
    parser.add_argument("libraries", nargs="*", help="transformers, torchvision, timm, torch; default: all that can be imported")
    parser.add_argument("--only", nargs="*", default=[""], help="entries whose name or kind contains one of these texts")
    parser.add_argument("--write", action="store_true", help="keep the table beside this file, one file a library")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for library, catalogue in CATALOGUES.items():
        if (options.libraries and library not in options.libraries) or not catalogue.importable:
            continue
        rows = []
        for entry in catalogue.entries:
            if any(part in f"{entry.name} {entry.family}" for part in options.only):
                rows.append(run(entry))
                cells = zip(COLUMNS, rows[-1].cells(), strict=True)
                print(library, *(f"{c}={v}" for c, v in cells if v), *rows[-1].defects, sep="  ", flush=True)
                if options.write and options.only == [""]:
                    write(library, rows)
        print(text(rows), summary(rows), sep="\n\n")


def write(library: str, rows: list[Row]) -> None:
    """Keep what is done so far: the table, and what was set away from the defaults."""
    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in dict.fromkeys(("torch", library)))
    head = f"{versions}, Python {platform.python_version()}, {datetime.date.today()}. {summary(rows)}."
    notes = "\n".join(f"- {row.entry.name}: {row.entry.note}" for row in rows if row.entry.note)
    body = "\n\n".join(part for part in (f"# {library}", head, text(rows), notes) if part)
    (Path(__file__).parent / f"{library}.md").write_text(body + "\n", encoding="utf-8")


main()
