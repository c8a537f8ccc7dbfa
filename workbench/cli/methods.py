"""List what is registered: matchers, tasks and architectures, and the shipped checkpoints."""

from __future__ import annotations

import argparse
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
    from workbench.matching.fields import which_matcher
    from workbench.matching.many import MANY_MATCHERS
    from workbench.tasks import TASKS

    registries = {"matchers": MATCHERS, "many models": MANY_MATCHERS, "tasks": TASKS, "architectures": ARCHITECTURES}
    listed = {kind: [_entry(entry) for entry in registry.entries()] for kind, registry in registries.items()}
    needed = {line.name: line.data for line in which_matcher()}
    for item in listed["matchers"]:
        item["data"] = needed[item["name"]]
    if arguments.name:
        found = [(kind, item) for kind, items in listed.items() for item in items if item["name"] == arguments.name]
        if not found:
            raise unknown_name("method", arguments.name, [item["name"] for items in listed.values() for item in items])
        console.answer(arguments, dict(found), "\n\n".join(_page(kind, item) for kind, item in found))
        return 0
    checkpoints = [entry["name"] for entry in shipped_models()]
    tables = [_table(kind, items) for kind, items in listed.items()]
    tables.append("shipped checkpoints\n  " + "\n  ".join(checkpoints))
    hidden = {"description", "fields"}
    brief = {kind: [{k: v for k, v in item.items() if k not in hidden} for item in items] for kind, items in listed.items()}
    console.answer(arguments, {**brief, "checkpoints": checkpoints}, "\n\n".join(tables))
    return 0


def _entry(entry: Any) -> dict[str, Any]:
    from workbench.matching.fields import matcher_fields

    fields = matcher_fields(entry.value)
    return {
        "name": entry.name,
        "summary": entry.summary,
        "reference": entry.reference,
        "options": {f.name: "required" if f.required else repr(f.default) for f in fields},
        "description": inspect.getdoc(entry.value) or "",
        "fields": {f.name: {"takes": f.expected, "choices": list(f.choices), "meaning": f.help} for f in fields},
    }


def _table(kind: str, items: list[dict[str, Any]]) -> str:
    """A table of one registry; matchers say which data they need."""
    columns = {kind: "name", "data": "data", "what it is": "summary", "reference": "reference"}
    if not all("data" in item for item in items):
        del columns["data"]
    return console.table(list(columns), [[item[key] for key in columns.values()] for item in items])


def _page(kind: str, item: dict[str, Any]) -> str:
    """One entry in full: its description, and its options with defaults."""
    heading = f"{item['name']} ({kind})  {item['reference']}".rstrip()
    parts = [heading, item["description"]] + ([f"data: {item['data']}"] if "data" in item else [])
    if not item["options"]:
        return "\n\n".join(parts)
    columns = ["option", "default", "takes"] if kind == "matchers" else ["option", "default"]
    rows = [[name, default, item["fields"][name]["takes"]][: len(columns)] for name, default in item["options"].items()]
    if kind == "matchers":
        parts.append(console.table(columns, rows))
        name, default = next(iter(item["options"].items()))
        parts.append(f"on the command line: --matcher {item['name']}:{name}={default.strip(chr(39))}")
        return "\n\n".join(parts)
    return "\n\n".join([*parts, console.table(columns, rows)])
