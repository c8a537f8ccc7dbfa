"""The fields of a matcher as a form or a command line sees them: type, choices, default, meaning; and a matcher made from values.

The meaning is read from the docstring of the matcher, where it says ``name: meaning;`` or ``first, second: meaning.``
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from workbench.errors import WorkbenchError
from workbench.matching.matcher import MATCHERS, matcher_needs
from workbench.options import call_factory

KINDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "text": "text", "any": "a Python value"}
PLAIN = {int: "int", float: "float", bool: "bool", str: "text"}


@dataclass(frozen=True)
class MatcherField:
    """One hyper-parameter. kind: a key of ``KINDS``, or "choice"; optional: None is allowed; help: its meaning, "" where untold.

    default: ``dataclasses.MISSING`` where the matcher has none.
    """

    name: str
    kind: str
    default: Any
    choices: tuple[Any, ...] = ()
    optional: bool = False
    help: str = ""

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def expected(self) -> str:
        """What may stand here, in words."""
        words = f"one of {', '.join(map(str, self.choices))}" if self.kind == "choice" else KINDS[self.kind]
        return words + (" or None" if self.optional else "")

    def checked(self, value: Any) -> Any:
        """``value`` in the type of the field (an integer where a float is wanted becomes one); raises ``WorkbenchError``."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {
            "int": number and isinstance(value, int),
            "float": number,
            "bool": isinstance(value, bool),
            "text": isinstance(value, str),
            "choice": value in self.choices,
            "any": True,
        }
        if value is None and (self.optional or self.kind == "any"):
            return None
        if not fits[self.kind]:
            raise WorkbenchError(f"{self.name} is {value!r}", expected=self.expected, cause="an option of the wrong type")
        return float(value) if self.kind == "float" else value


def matcher_fields(factory: Any) -> tuple[MatcherField, ...]:
    """The fields of a matcher's class in their order. A factory that is no dataclass has the parameters of its signature."""
    try:
        hints = get_type_hints(factory)
    except (NameError, TypeError):  # an annotation that only a type checker can read: any value may be given
        hints = {}
    if dataclasses.is_dataclass(factory):
        found = [(f.name, _default(f)) for f in dataclasses.fields(factory) if f.init]
    else:
        empty = inspect.Parameter.empty
        parameters = inspect.signature(factory).parameters.values()
        found = [(p.name, dataclasses.MISSING if p.default is empty else p.default) for p in parameters]
    told = meanings(inspect.getdoc(factory) or "", [name for name, _ in found])
    return tuple(
        MatcherField(name, default=default, help=told.get(name, ""), **_kind(hints.get(name, Any))) for name, default in found
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _kind(hint: Any) -> dict[str, Any]:
    """Kind, choices and whether None is allowed, from a resolved annotation."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    rest = [part for part in parts if part is not type(None)]
    optional = len(rest) < len(parts)
    if rest and all(get_origin(part) is Literal for part in rest):
        return {"kind": "choice", "choices": tuple(value for part in rest for value in get_args(part)), "optional": optional}
    if set(rest) == {int, float}:
        rest = [float]
    kind = PLAIN.get(rest[0], "any") if len(rest) == 1 else "any"
    return {"kind": kind, "optional": optional}


def meanings(docstring: str, names: list[str]) -> dict[str, str]:
    """Name -> what a docstring says of it: the text after ``name:`` up to the next name, the end of the sentence or paragraph.

    >>> meanings("Rounds. steps, lr: of Adam; noise: at the start (0: none). More.", ["steps", "lr", "noise"])
    {'steps': 'of Adam', 'lr': 'of Adam', 'noise': 'at the start (0: none)'}
    """
    if not names:
        return {}
    one = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    heads = list(re.finditer(rf"(?:(?<=\s)|^)((?:{one})(?:,\s+(?:{one}))*):\s", docstring))
    told: dict[str, str] = {}
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(docstring)
        text = docstring[head.end() : end].partition("\n\n")[0]
        text = re.split(r"\.\s+(?=[A-Z])", " ".join(text.split()))[0].rstrip(" ;.")
        for name in re.split(r",\s+", head[1]):
            told.setdefault(name, text)
    return told


def make_matcher(name: str, options: Mapping[str, Any]) -> Any:
    """The registered matcher ``name`` with ``options`` for its fields; the others have their defaults.

    Raises ``WorkbenchError`` for an unknown name or field (with a did-you-mean), a value of the wrong type, and whatever the
    matcher itself refuses.
    """
    factory = MATCHERS[name]
    fields = {field.name: field for field in matcher_fields(factory)}
    known = {key: fields[key].checked(value) if key in fields else value for key, value in options.items()}
    return call_factory("matcher", name, factory, known)


def needs_by_setting(factory: Any) -> dict[str, str]:
    """What a matcher looks at beside the weights: "" -> with its defaults, "cost=midpoint" -> where a choice changes that."""
    if any(field.required for field in matcher_fields(factory)):
        told = getattr(factory, "needs", "nothing")
        return {"": told if isinstance(told, str) else "nothing"}
    found = {"": matcher_needs(factory)}
    for field in matcher_fields(factory):
        for value in field.choices:
            try:
                needs = matcher_needs(factory(**{field.name: value}))
            except WorkbenchError:  # a choice that asks for another setting beside it
                continue
            if needs != found[""]:
                found[f"{field.name}={value}"] = needs
    return found


@dataclass(frozen=True)
class MatcherLine:
    """One line of the table "which matcher?"."""

    name: str
    summary: str
    data: str
    reference: str


def which_matcher() -> list[MatcherLine]:
    """Every registered matcher: name, what it is, which data it needs, and where it was published."""
    words = {"nothing": "none", "inputs": "examples", "labels": "labelled examples"}
    lines = []
    for entry in MATCHERS.entries():
        needs = needs_by_setting(entry.value)
        data = words[needs.pop("")]
        for kind in dict.fromkeys(needs.values()):
            data += f"; {words[kind]} with {' or '.join(setting for setting, other in needs.items() if other == kind)}"
        lines.append(MatcherLine(entry.name, entry.summary, data, entry.reference))
    return lines
