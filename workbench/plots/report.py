"""A report as one HTML file that opens offline: the numbers as tables, then the figures, with BokehJS inside it once."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import holoviews as hv
import numpy as np
from bokeh.embed import components
from bokeh.settings import settings

from workbench.plots import PLOTS

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; background: #fff;
  max-width: 1180px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
.verdict { font-size: 1.1rem; margin: .2rem 0 1.4rem; }
.tables { columns: 440px; column-gap: 2.5rem; } .tables > div { break-inside: avoid; }
table { border-collapse: collapse; margin: .4rem 0; } caption { text-align: left; font-weight: 600; padding: .5rem 0 .2rem; }
th, td { text-align: left; vertical-align: top;
  padding: .15rem 1rem .15rem 0; border-bottom: 1px solid #e6e9ed; font-weight: normal; }
th { color: #5b6775; } td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 1.5rem; }
figure { margin: 0; min-width: 0; } figcaption { color: #5b6775; font-size: .9rem; }
"""


def comparison_figures(comparison: Any, *, gamma: float | None = None) -> dict[str, hv.Dimensioned]:
    """Caption -> figure, for everything a ``Comparison`` holds, in the order of a report.

    gamma: one of the thresholds of its spectra (default: the middle one).
    """
    profile, alignment, spectra = comparison.profile, comparison.alignment, comparison.spectra
    calibration = profile.attrs.get("calibration", "none")
    along = f"{profile.sizes['t']} points, calibration: {calibration}; orange: as it came, blue: aligned"
    figures = {
        f"{metric} along the straight path, {along}": PLOTS["profile"](profile, metric=metric) for metric in profile.data_vars
    }
    figures["Every visit of a factor; the end is a local optimum"] = PLOTS["matching_history"](alignment.history)
    for name, permutation in alignment.element.permutations.items():
        figures[f"Permutation of {name}"] = PLOTS["permutation"](np.asarray(permutation), name=name)
    if spectra is not None:
        figures["R per layer, beside unrelated networks matched the same way"] = PLOTS["alignment_spectrum"](
            spectra, gamma=gamma
        )
        for layer in spectra["layer"].to_numpy():
            figures[f"Singular values of {layer}"] = PLOTS["singular_values"](spectra, layer=str(layer), gamma=gamma, log=True)
    return figures


def report_html(summary: Mapping[str, Any], figures: Mapping[str, hv.Dimensioned], title: str) -> str:
    """One self-contained page.

    summary: JSON-able; plain values come first ("verdict" as a sentence), then the figures, then a table for every nested
    mapping. figures: caption -> HoloViews element. A non-finite number is written as "undefined". Nothing is asked from the
    network when the page is opened.
    """
    drawn = {f"figure{i}": hv.render(element, backend="bokeh") for i, element in enumerate(figures.values())}
    script, divs = components(drawn) if drawn else ("", {})
    pictures = "".join(
        f"<figure>{divs[key]}<figcaption>{html.escape(caption)}</figcaption></figure>"
        for key, caption in zip(drawn, figures, strict=True)
    )
    resources = f"<script>{_bokehjs()}</script>" if drawn else ""
    plain = {key: value for key, value in summary.items() if not isinstance(value, Mapping) and key != "verdict"}
    nested = {key: value for key, value in summary.items() if isinstance(value, Mapping)}
    verdict = f"<p class='verdict'>{html.escape(str(summary['verdict']))}</p>" if "verdict" in summary else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>{resources}</head><body>'
        f"<h1>{html.escape(title)}</h1>{verdict}{_tables(plain)}<div class='figures'>{pictures}</div>"
        f"<h2>All numbers</h2><div class='tables'>{_tables(nested)}</div>{script}</body></html>"
    )


@cache
def _bokehjs() -> str:
    """BokehJS itself and nothing else: its full set of resources is four times as large and asks a CDN for MathJax."""
    text = (settings.bokehjs_path() / "js" / "bokeh.min.js").read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")


def _tables(summary: Mapping[str, Any], caption: str = "") -> str:
    """One table of the plain values; mappings of plain values side by side as the rows of another; deeper ones by themselves."""
    plain = {key: value for key, value in summary.items() if not isinstance(value, Mapping)}
    rows = [(_words(key), [_text(value)]) for key, value in plain.items()]
    out = _table(caption, [], rows) if rows else ""
    nested = {key: value for key, value in summary.items() if isinstance(value, Mapping)}
    flat = {k: v for k, v in nested.items() if caption and v and not any(isinstance(item, Mapping) for item in v.values())}
    if len(flat) > 1 and len({tuple(value) for value in flat.values()}) == 1:
        columns = list(next(iter(flat.values())))
        rows = [(_words(k), [_text(item) for item in v.values()]) for k, v in flat.items()]
        out += _table("" if out else caption, [_words(column) for column in columns], rows)
    else:
        flat = {}
    rest = [(key, value) for key, value in nested.items() if key not in flat]
    return out + "".join(_tables(value, f"{caption} · {_words(key)}" if caption else _words(key)) for key, value in rest)


def _table(caption: str, columns: list[str], rows: list[tuple[str, list[str]]]) -> str:
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    head = "<tr><th></th>" + "".join(f"<th>{html.escape(c)}</th>" for c in columns) + "</tr>" if columns else ""
    body = "".join(
        f"<tr><th>{html.escape(k)}</th>{''.join(f'<td>{html.escape(c)}</td>' for c in cells)}</tr>" for k, cells in rows
    )
    return f"<div><table>{title}{head}{body}</table></div>"


def _words(key: Any) -> str:
    return str(key).replace("_", " ")


def _text(value: Any) -> str:
    """Numbers to five digits, lists on one line, None and non-finite numbers in words."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}" if math.isfinite(value) else "undefined (non-finite)"
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value) or "none"
    return str(value)
