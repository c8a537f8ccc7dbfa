"""Rules: what each operation of core ATen does to the order of axes. One short file a family; a new rule is one function.

A rule is ``rule(walk, args, kwargs) -> TensorType | tuple``; tensors among the arguments are ``TensorType``s, and the result is
made only by ``walk.loop``, ``walk.move``, ``walk.join`` or ``walk.opaque``. Raise ``NoRule`` for a form the rule does not cover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.registry import Registry

RULES: Registry[Callable[..., Any]] = Registry("operation rule", package="workbench.symmetry.rules", group="workbench.op_rules")


class NoRule(Exception):
    """The operation has a rule, but not for this form of it; the walk then treats it as unknown and says why."""


def rule(*names: str, indices: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function for ATen operations by name, without namespace and overload.

    indices: the rule itself says what becomes of operands whose values point into an axis; where it does not, that axis is pinned.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function.takes_indices = indices
        for name in names:
            RULES.register(name)(function)
        return function

    return decorate
