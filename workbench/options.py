"""Calling a registered factory by name with keyword options, and reading such options from one line of text.

``mlp:width=64,depth=3`` on a command line and ``architecture("mlp", width=64, depth=3)`` in Python are the same request.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from workbench.errors import WorkbenchError, unknown_name


def complete_options(kind: str, name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with the factory's defaults filled in, in the order of its signature.

    Raises ``WorkbenchError`` for an option the factory does not take (with a did-you-mean) and for a required one left out.
    """
    parameters = inspect.signature(factory).parameters
    for option in options:
        if option not in parameters:
            raise unknown_name(f"option of the {kind} {name!r}", option, parameters)
    complete = {}
    for option, parameter in parameters.items():
        if option in options:
            complete[option] = options[option]
        elif parameter.default is not inspect.Parameter.empty:
            complete[option] = parameter.default
        else:
            raise WorkbenchError(
                f"The {kind} {name!r} needs the option {option!r}",
                expected=f"{name}({', '.join(str(p) for p in parameters.values())})",
                next_step=f"pass {option}=...",
            )
    return complete


def call_factory(kind: str, name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """``factory(**options)`` with its defaults filled in; an option of the wrong type ends in a ``WorkbenchError``."""
    complete = complete_options(kind, name, factory, options)
    try:
        return factory(**complete)
    except WorkbenchError:
        raise
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise WorkbenchError(
            f"The {kind} {name!r} cannot be made with {given or 'its defaults'} ({error})",
            expected=f"{name}({', '.join(str(p) for p in inspect.signature(factory).parameters.values())})",
            cause="an option of the wrong type",
        ) from error


def parse_options(text: str) -> dict[str, Any]:
    """``"width=64,norm=batch,widths=(8,16)"`` as a dict: Python literals where they parse, plain strings otherwise."""
    options: dict[str, Any] = {}
    for part in _split_outside_brackets(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip().isidentifier():
            raise WorkbenchError(
                f"The option {part.strip()!r} cannot be read",
                expected="key=value pairs with commas between them, such as width=64,depth=3",
            )
        try:
            options[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            options[key.strip()] = {"true": True, "false": False}.get(value.strip(), value.strip())
    return options


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]
