"""List what is registered: matchers, tasks and architectures, and the shipped checkpoints."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from typing import Any

from workbench.cli import console

HELP = "list matchers, tasks, architectures and shipped checkpoints"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="show one of them with its options and full description")


def run(arguments: argparse.Namespace) -> int:
    from workbench.architectures import ARCHITECTURES
    from workbench.checkpoints import shipped_models
    from workbench.errors import unknown_name
    from workbench.matching import MATCHERS
    from workbench.tasks import TASKS

    registries = {"matchers": MATCHERS, "tasks": TASKS, "architectures": ARCHITECTURES}
    listed = {kind: [_entry(entry) for entry in registry.entries()] for kind, registry in registries.items()}
    if arguments.name:
        found = [(kind, item) for kind, items in listed.items() for item in items if item["name"] == arguments.name]
        if not found:
            raise unknown_name("method", arguments.name, [item["name"] for items in listed.values() for item in items])
        console.answer(arguments, dict(found), "\n\n".join(_page(kind, item) for kind, item in found))
        return 0
    checkpoints = [entry["name"] for entry in shipped_models()]
    tables = [
        console.table([kind, "what it is", "reference"], [[item["name"], item["summary"], item["reference"]] for item in items])
        for kind, items in listed.items()
    ]
    tables.append("shipped checkpoints\n  " + "\n  ".join(checkpoints))
    brief = {kind: [{k: v for k, v in item.items() if k != "description"} for item in items] for kind, items in listed.items()}
    console.answer(arguments, {**brief, "checkpoints": checkpoints}, "\n\n".join(tables))
    return 0


def _entry(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.name,
        "summary": entry.summary,
        "reference": entry.reference,
        "options": _options(entry.value),
        "description": inspect.getdoc(entry.value) or "",
    }


def _options(value: Any) -> dict[str, str]:
    """Option -> its default, in words."""
    if dataclasses.is_dataclass(value):
        return {f.name: "required" if f.default is dataclasses.MISSING else repr(f.default) for f in dataclasses.fields(value)}
    parameters = inspect.signature(value).parameters.values()
    return {p.name: "required" if p.default is p.empty else repr(p.default) for p in parameters}


def _page(kind: str, item: dict[str, Any]) -> str:
    rows = [[name, default] for name, default in item["options"].items()]
    parts = [f"{item['name']} ({kind})  {item['reference']}".rstrip(), item["description"]]
    return "\n\n".join([*parts, console.table(["option", "default"], rows)] if rows else parts)
