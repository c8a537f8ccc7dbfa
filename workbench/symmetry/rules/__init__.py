"""Rules: what each operation of core ATen does to the order of axes. One short file a family; a new rule is one function.

A rule is ``rule(walk, args, kwargs) -> TensorType | tuple``; tensors among the arguments are ``TensorType``s, and the result is
made only by ``walk.loop``, ``walk.move``, ``walk.join`` or ``walk.opaque``. Raise ``NoRule`` for a form the rule does not cover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.registry import Registry

RULES: Registry[Callable[..., Any]] = Registry("operation rule", package="workbench.symmetry.rules", group="workbench.op_rules")


# Operations whose rule itself says what becomes of operands whose values point into an axis.
TAKE_INDICES: set[str] = set()


class NoRule(Exception):
    """The operation has a rule, but not for this form of it; the walk then treats it as unknown and says why."""


def rule(*names: str, indices: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function for ATen operations by name, without namespace and overload.

    indices: see ``TAKE_INDICES``; for any other operation, an axis that the values of an operand point into is pinned.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES.register(name)(function)
            if indices:
                TAKE_INDICES.add(name)
        return function

    return decorate
