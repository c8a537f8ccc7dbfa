"""Small pieces of HTML that take the page's own colours, so that they read in light and in dark. Every text is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

STYLE = """
<style>
.about { font-size: 12px; opacity: .75; margin: 0 2px 4px; white-space: pre-line; overflow-wrap: anywhere; }
.headline { font-size: 15px; font-weight: 500; line-height: 1.4; margin: 0 2px 10px; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 10px; }
.fact { border: 1px solid rgba(128,128,128,.35); border-radius: 6px; padding: 8px 12px; min-width: 0; }
.fact .name { font-size: 12px; opacity: .75; }
.fact .value { font-size: 18px; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.35; }
.fact .note { font-size: 12px; opacity: .75; line-height: 1.35; overflow-wrap: anywhere; }
table.numbers { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
table.numbers th { font-weight: 500; opacity: .75; text-align: right; padding: 3px 6px; }
table.numbers td { text-align: right; padding: 3px 6px; border-top: 1px solid rgba(128,128,128,.25); white-space: nowrap; }
table.numbers th:first-child, table.numbers td:first-child { text-align: left; padding-left: 0; }
table.numbers.words th, table.numbers.words td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.numbers.words td { vertical-align: top; padding-left: 0; padding-right: 14px; }
table.numbers.words th { padding-left: 0; }
table.numbers.words td:first-child { white-space: nowrap; }
.lines { font-size: 13px; line-height: 1.5; white-space: pre-wrap; overflow-wrap: anywhere; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.quiet { font-size: 12px; opacity: .75; line-height: 1.4; margin: 6px 0 0; }
</style>
"""


def facts(items: Sequence[tuple[str, str, str]], *, headline: str = "", about: str = "") -> str:
    """(name, value, note) each in a small box, below what it is ``about`` and a sentence that sums it up."""
    boxes = "".join(
        f'<div class="fact"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="note">{escape(note)}</div></div>'
        for name, value, note in items
    )
    above = f'<div class="about">{escape(about)}</div>' if about else ""
    above += f'<div class="headline">{escape(headline)}</div>' if headline else ""
    return f'{STYLE}{above}<div class="facts">{boxes}</div>'


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, colours: Sequence[str] = (), note: str = "", words: bool = False
) -> str:
    """A table of numbers as text; ``colours`` marks each row with a swatch; ``note`` is a quiet line below; words: cells hold
    words, which begin at the left and may wrap."""
    header = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = ""
    for index, row in enumerate(rows):
        swatch = f'<span class="swatch" style="background:{escape(colours[index])}"></span>' if index < len(colours) else ""
        cells = "".join(f"<td>{swatch if column == 0 else ''}{escape(text)}</td>" for column, text in enumerate(row))
        body += f"<tr>{cells}</tr>"
    below = f'<p class="quiet">{escape(note)}</p>' if note else ""
    kind = "numbers words" if words else "numbers"
    return f'{STYLE}<table class="{kind}"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>{below}'


def lines(text: str) -> str:
    """Text whose line breaks and indents mean something."""
    return f'{STYLE}<div class="lines">{escape(text)}</div>'


def number(value: float, *, percent: bool = False) -> str:
    """A figure to four digits, a share as per cent; a value that is not finite is "undefined"."""
    if not math.isfinite(value):
        return "undefined"
    if percent:
        return f"{100 * value:.1f} %"
    if value == 0:
        return "0"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 10 else f"{value:.4g}"


def power_of_ten(exponent: float) -> str:
    """10 with a raised exponent."""
    return raised("10", exponent)


def raised(base: str, exponent: float) -> str:
    """``base`` with a raised whole exponent."""
    return base + f"{exponent:.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
