"""The zoo in the suite: no wrong claim on any architecture, no more unknown operations than are known, orders by hand."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from workbench.symmetry.rules import RULES
from workbench.symmetry.rules.elementwise import elementwise
from zoo.catalogue import CATALOGUES
from zoo.entry import PLAIN, TRANSFORMERS, Entry
from zoo.table import COLUMNS, Row, run, text

# One or two of each kind; ``python -m zoo`` runs all.
KINDS = set(
    "llama|llama (MQA)|opt|bloom|mixtral|gptj|bart|t5|cohere (qk-norm)|phi3|gpt_oss|jetmoe|"
    "deepseek_v3|mamba2|rwkv|fnet|whisper|swin|regnet|bit".split("|")
)
IN_SUITE = [*CATALOGUES[PLAIN].entries, *(entry for entry in CATALOGUES[TRANSFORMERS].entries if entry.name in KINDS)]


@pytest.fixture(scope="module", autouse=True)
def _no_trace():
    """pytest keeps all logs, for which torch would write out a trace of every export."""
    logger = logging.getLogger("torch.__trace")
    before, logger.disabled = logger.disabled, True
    yield
    logger.disabled = before


@cache
def row_of(name: str) -> Row:
    return run(named(name))


def named(name: str) -> Entry:
    return next(entry for catalogue in CATALOGUES.values() for entry in catalogue.entries if entry.name == name)


def lf(*sizes: int) -> float:
    """log10 of the product of the factorials."""
    return sum(math.lgamma(n + 1) for n in sizes) / math.log(10)


@pytest.mark.parametrize("entry", IN_SUITE, ids=lambda entry: entry.name)
def test_no_wrong_claim(entry):
    if entry.library == TRANSFORMERS:
        pytest.importorskip("transformers", reason="needs transformers, which is in the test extra")
    row = row_of(entry.name)
    if entry.reason:
        assert entry.reason in row.failure
        return
    assert row.symmetry is not None, row.failure
    assert not row.defects
    assert row.symmetry.proof.passed
    assert row.error < 1e-9
    assert row.symmetry.coverage >= entry.floor
    assert sorted(row.symmetry.unknown_ops) == sorted(entry.unknown)


# Stream 16, two layers, hidden 12, four heads of 4 unless said otherwise: lf(16) for the stream, and a layer:
MLP = lf(12)
GROUPED = lf(2) + 2 * lf(2) + 2 * lf(4)  # two key heads, two query heads in each, values inside each; rotary tables pin the keys
FULL = lf(4) + 4 * lf(4) + 4 * lf(4)  # four heads, queries with keys inside each, values inside each
FULL_OF_TWO = lf(2) + 4 * lf(4)
BY_HAND = {
    "llama": lf(16) + 2 * (MLP + GROUPED),
    "llama (MQA)": lf(16) + 2 * (MLP + lf(4) + lf(4)),
    "opt": lf(16) + 2 * (MLP + FULL),
    # fixed slopes pin the heads; queries and values inside each are free; hidden 64
    "bloom": lf(16) + 2 * (lf(64) + 8 * lf(4)),
    # three experts, each with hidden units of its own
    "mixtral": lf(16) + 2 * (lf(3) + 3 * MLP + GROUPED),
    # two heads of 8, of which 4 are turned in pairs (i, i + 1) and the others not
    "gptj": lf(16) + 2 * (MLP + lf(2) + 2 * (lf(4) + lf(8))),
    # one table of words for both sides, so one stream; self-attention of both, and across
    "bart": lf(16) + 2 * (lf(12) + lf(11)) + 6 * FULL,
    # heads of 3; one table of biases a side, so all layers have their heads in one order, but for the attention across
    "t5": lf(16) + 4 * lf(12) + 2 * lf(4) + 2 * lf(4) + 48 * lf(3),
    "VGG": lf(6, 8, 10, 12),
    "UNet": lf(32) + 3 * lf(4, 8, 16),  # the stem, the way up and the joined levels; at the bottom alone
    "residual network, padded shortcut": lf(4, 6) + lf(4),  # the four channels of zeros, two on each side, are one factor
    "discriminator, instance norm, weight norm": lf(6, 8),
    "DCGAN generator": lf(6, 12, 8),
    "LSTM, two layers, both directions": lf(5, 6, 6, 6, 6),
    "nn.Transformer encoder": 2 * (lf(12) + FULL_OF_TWO),
    "pixel shuffle, GLU, upsampling": lf(6, 2, 5),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_order_by_hand(name):
    entry = named(name)
    if entry.library == TRANSFORMERS:
        pytest.importorskip("transformers", reason="needs transformers, which is in the test extra")
    assert row_of(name).symmetry.log10_order() == pytest.approx(BY_HAND[name], abs=1e-6)


def test_a_wrong_rule_is_caught(monkeypatch):
    """Control: with the running sum taken for an element-wise operation, the group is too large, and the proof says so."""

    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.b(self.a(x).cumsum(-1))

    entry = Entry("running sum", PLAIN, "", lambda: (Running(), (torch.randn(2, 5),)))
    assert not run(entry).defects
    RULES["cumsum"]  # all rules are loaded before one is replaced
    monkeypatch.setitem(RULES._entries, "cumsum", replace(RULES.entry("cumsum"), value=elementwise))
    row = run(entry)
    assert row.defects
    assert not row.symmetry.groups


def test_the_table_has_one_line_an_entry():
    rows = [run(named("autoencoder")), run(Entry("broken", PLAIN, "", lambda: 1 / 0))]
    lines = text(rows).splitlines()
    assert len(lines) == 4
    assert all(line.count("|") == len(COLUMNS) + 1 for line in lines)
    assert "ZeroDivisionError" in lines[3]
