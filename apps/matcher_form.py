"""A form for any matcher, made from its fields: one parameter a field, and the matcher that the values stand for.

Numbers are text, so that what was typed wrongly stays where it was typed, with the reason beside it. No widget is made here:
a page shows a boolean as a checkbox, a selector as a list, and everything else as a line of text.
"""

from __future__ import annotations

import ast
from typing import Any

import param

from workbench.errors import WorkbenchError
from workbench.matching import MATCHERS
from workbench.matching.fields import MatcherField, make_matcher, matcher_fields
from workbench.matching.matcher import NEEDS, matcher_needs

LONGEST = 200  # characters of one value


class MatcherForm(param.Parameterized):
    """The fields of one matcher as text and choices. error: why no matcher can be made of them, "" where one can."""

    error = param.String(doc="The text of the matcher's own complaint; empty where the values are fine.")
    needs = param.String(doc="What the matcher with these values looks at beside the weights, a key of NEEDS.")
    changed = param.String(doc="The values that differ from the defaults, as on the command line.")

    def __init__(self, matcher: str) -> None:
        super().__init__()
        self.matcher = matcher
        self.fields = {field.name: field for field in matcher_fields(MATCHERS[matcher])}
        self.values = _values_class(matcher, self.fields)()
        self._defaults = {name: getattr(self.values, name) for name in self.fields}
        self.values.param.watch(self._check, list(self.fields)) if self.fields else None
        self._check()

    def options(self) -> dict[str, Any]:
        """The fields whose values differ from the defaults; raises ``WorkbenchError`` for text that is no value of its field."""
        given = {name: getattr(self.values, name) for name in self.fields}
        return {
            name: _read(self.fields[name], value)
            for name, value in given.items()
            if value != self._defaults[name] or self.fields[name].required
        }

    def build(self) -> Any:
        """The matcher; raises ``WorkbenchError`` where a value is not one, or where the matcher refuses it."""
        return make_matcher(self.matcher, self.options())

    def reset(self) -> None:
        """Every field back to its default."""
        self.values.param.update(**self._defaults)

    def _check(self, *events: Any) -> None:
        try:
            options = self.options()
            needs, error = matcher_needs(make_matcher(self.matcher, options)), ""
            changed = ", ".join(f"{name}={value}" for name, value in options.items())
        except WorkbenchError as problem:
            needs, error, changed = self.needs, str(problem), self.changed
        self.param.update(needs=needs, error=error, changed=changed)


def needs_words(needs: str, task: str) -> str:
    """What a matcher looks at, and where that comes from."""
    if needs not in NEEDS:
        return ""
    if needs == "nothing":
        return "Looks at the weights alone: no data used."
    what = {"inputs": "examples (forward passes)", "labels": "labelled examples (and gradients)"}[needs]
    return f"Looks at {what}: those of the task above ({task}), split train where it has one."


def _values_class(matcher: str, fields: dict[str, MatcherField]) -> type[param.Parameterized]:
    made = {name: _parameter(field) for name, field in fields.items()}
    return type(f"Values of {matcher}", (param.Parameterized,), made)


def _parameter(field: MatcherField) -> param.Parameter:
    shared = {"label": field.name, "doc": field.help}
    default = None if field.required else field.default
    if field.kind == "bool" and not field.optional:
        return param.Boolean(default=bool(default), **shared)
    if field.kind == "choice":
        choices = [*field.choices, *([None] if field.optional else [])]
        return param.Selector(default=default if default in choices else choices[0], objects=choices, **shared)
    return param.String(default="" if default is None else str(default), **shared)


def _read(field: MatcherField, value: Any) -> Any:
    """The value of a field: what a choice or a checkbox holds, else what the text says."""
    if not isinstance(value, str) or field.kind == "choice":
        return value
    text = value.strip()
    if len(text) > LONGEST:
        raise WorkbenchError(f"{field.name} is {len(text)} characters long", expected=f"at most {LONGEST}")
    if not text and field.optional:
        return None
    if field.kind == "text":
        return value
    if not text:
        raise WorkbenchError(f"{field.name} is empty", expected=field.expected)
    try:
        return field.checked({"int": int, "float": float}.get(field.kind, _literal)(text))
    except ValueError as error:
        if isinstance(error, WorkbenchError):
            raise
        raise WorkbenchError(f"{field.name} is {text!r}", expected=field.expected) from None


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
