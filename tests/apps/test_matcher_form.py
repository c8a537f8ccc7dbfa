"""The form of a matcher: every field can be filled in, a wrong value stays and is explained, and what is needed is said."""

from __future__ import annotations

import subprocess
import sys

import param
import pytest

from workbench.matching import MATCHERS
from workbench.shipped.apps.matcher_form import MatcherForm, needs_words


@pytest.mark.parametrize("name", list(MATCHERS))
def test_the_form_of_every_matcher_makes_it_with_its_defaults(name):
    form = MatcherForm(name)
    assert form.error == ""
    assert form.options() == {}
    assert form.changed == ""
    assert form.build() == MATCHERS[name]()


def test_a_field_is_a_checkbox_a_list_or_text():
    values = MatcherForm("spectral").values.param
    assert isinstance(values.include_biases, param.Boolean)
    assert values.order.objects == ["random", "given"]
    assert isinstance(values.rank, param.String)
    assert values.tolerance.default == "1e-09"
    assert values.energy.label == "energy"
    assert "squared norm" in values.rank.doc


def test_text_becomes_numbers():
    form = MatcherForm("spectral")
    form.values.param.update(rank=" 16 ", energy="0.25", tolerance="1e-6", include_biases=True, start="anchored")
    made = form.build()
    assert (made.rank, made.energy, made.tolerance, made.include_biases, made.start) == (16, 0.25, 1e-6, True, "anchored")
    assert form.changed == "rank=16, energy=0.25, include_biases=True, tolerance=1e-06, start=anchored"
    form.reset()
    assert form.options() == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("many", "rank is 'many'. Expected: a whole number."),
        ("1.5", "rank is '1.5'. Expected: a whole number."),
        ("", "rank is empty. Expected: a whole number."),
        ("-1", "rank ≥ 0"),  # the matcher's own words
        ("9" * 300, "300 characters"),
        ("__import__('os')", "Expected: a whole number."),
    ],
)
def test_a_wrong_value_stays_and_is_explained(text, message):
    form = MatcherForm("spectral")
    form.values.energy = "0.3"
    form.values.rank = text
    assert message in form.error
    assert form.values.rank == text
    assert form.values.energy == "0.3"
    form.values.rank = "2"
    assert form.error == ""
    assert form.options() == {"rank": 2, "energy": 0.3}


def test_what_is_needed_follows_the_values():
    form = MatcherForm("sinkhorn")
    assert form.needs == "nothing"
    assert "no data used" in needs_words(form.needs, "digits")
    form.values.cost = "midpoint"
    assert form.needs == "labels"
    assert "labelled examples" in needs_words(form.needs, "digits")
    assert "digits" in needs_words(form.needs, "digits")


def test_no_panel_behind_the_form():
    code = "import sys; import workbench.shipped.apps.matcher_form; print([m for m in sys.modules if m.split('.')[0] == 'panel'])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
