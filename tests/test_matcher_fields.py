"""Fields of matchers: what a form and a command line may ask, and what becomes of the values."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import pytest

from workbench.errors import WorkbenchError
from workbench.matching import MATCHERS
from workbench.matching.fields import make_matcher, matcher_fields, meanings, needs_by_setting, which_matcher
from workbench.matching.matcher import matcher_needs


@dataclass(frozen=True)
class Every:
    """Every kind of field.

    count: how many (0: all); share, rate: both in (0, 1]: one is enough. A sentence of its own.
    kind: "a", or "b": the other one; name: text.
    """

    needed: int
    count: int = 3
    share: float = 0.5
    rate: float | None = None
    on: bool = True
    kind: Literal["a", "b"] = "a"
    name: str = "x"
    widths: tuple[int, ...] = (1, 2)
    more: list = dataclasses.field(default_factory=list)


def test_every_kind_of_field_is_read():
    fields = {field.name: field for field in matcher_fields(Every)}
    assert {name: field.kind for name, field in fields.items()} == {
        "needed": "int",
        "count": "int",
        "share": "float",
        "rate": "float",
        "on": "bool",
        "kind": "choice",
        "name": "text",
        "widths": "any",
        "more": "any",
    }
    assert [name for name, field in fields.items() if field.required] == ["needed"]
    assert [name for name, field in fields.items() if field.optional] == ["rate"]
    assert fields["kind"].choices == ("a", "b")
    assert fields["more"].default == []
    assert fields["count"].help == "how many (0: all)"
    assert fields["share"].help == fields["rate"].help == "both in (0, 1]: one is enough"
    assert fields["kind"].help == '"a", or "b": the other one'
    assert fields["on"].help == ""


def test_a_word_that_is_no_field_has_no_meaning():
    assert meanings("Note: see below. steps: few", ["steps"]) == {"steps": "few"}
    assert meanings("my_steps: few", ["steps"]) == {}
    assert meanings("steps: few", []) == {}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("count", 4, [4.0, "4", True, None]),
        ("share", 0.25, ["a", True, None]),
        ("rate", None, ["a"]),
        ("on", False, [1, "yes", None]),
        ("kind", "b", ["c", 1, None]),
        ("name", "y", [1, None]),
    ],
)
def test_values_are_held_against_the_type(name, good, bad):
    field = next(field for field in matcher_fields(Every) if field.name == name)
    assert field.checked(good) == good
    for value in bad:
        with pytest.raises(WorkbenchError, match=f"{name} is .*Expected: "):
            field.checked(value)


def test_a_whole_number_is_a_number():
    assert isinstance(make_matcher("spectral", {"energy": 1}).energy, float)


@pytest.mark.parametrize("name", list(MATCHERS))
def test_every_registered_matcher_can_be_asked_for_by_its_fields(name):
    fields = matcher_fields(MATCHERS[name])
    assert make_matcher(name, {field.name: field.default for field in fields}) == make_matcher(name, {})
    assert "any" not in {field.kind for field in fields}, "a form has no widget for it but a line of Python"
    for field in fields:
        wrong = {"int": 1.5, "float": "a", "bool": 2, "text": 3, "choice": "no such choice"}[field.kind]
        with pytest.raises(WorkbenchError, match=f"{field.name} is"):
            make_matcher(name, {field.name: wrong})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("spectral", {"rnk": 3}, "did you mean 'rank'"),
        ("spectrl", {}, "did you mean 'spectral'"),
        ("spectral", {"rank": -1}, "rank ≥ 0"),  # the matcher's own words
        ("identity", {"rank": 1}, "option of the matcher 'identity'"),
    ],
)
def test_what_cannot_be_made_is_said(name, options, message):
    with pytest.raises(WorkbenchError, match=message):
        make_matcher(name, options)


def test_what_is_needed_may_depend_on_a_choice():
    assert needs_by_setting(MATCHERS["sinkhorn"]) == {"": "nothing", "cost=midpoint": "labels", "cost=random": "labels"}
    assert needs_by_setting(MATCHERS["weights"]) == {"": "nothing"}


def test_the_table_holds_every_matcher_and_tells_the_truth_of_its_data():
    lines = {line.name: line for line in which_matcher()}
    assert set(lines) == set(MATCHERS)
    for name, line in lines.items():
        assert line.summary
        assert line.data.startswith({"nothing": "none", "inputs": "examples", "labels": "labelled examples"}[matcher_needs(name)])
