"""Prints and writes the table: ``PYTHONPATH=tests python -m zoo [LIBRARY …] [--only TEXT] [--write]``."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
from pathlib import Path

import torch

from zoo.catalogue import CATALOGUES
from zoo.table import COLUMNS, run, summary, text


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
            if any(text in f"{entry.name} {entry.family}" for text in options.only):
                rows.append(run(entry))
                print(library, *(f"{c}={v}" for c, v in zip(COLUMNS, rows[-1].cells(), strict=True) if v), *rows[-1].defects, sep="  ", flush=True)
        table = text(rows)
        print(table, summary(rows), sep="\n\n")
        if options.write and options.only == [""]:
            versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in dict.fromkeys(("torch", library)))
            head = f"{versions}, Python {platform.python_version()}, {datetime.date.today()}. {summary(rows)}."
            notes = [f"- {row.entry.name}: {row.entry.note}" for row in rows if row.entry.note]
            body = "\n\n".join([f"# {library}", head, table, *(["\n".join(notes)] if notes else [])])
            (Path(__file__).parent / f"{library}.md").write_text(body + "\n", encoding="utf-8")


main()
