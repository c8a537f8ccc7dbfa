"""The alignments of one pair as a table: one line each, every figure with its null, the naive path on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from workbench.plots.style import ALIGNED, NAIVE, OTHER_COLOURS

from . import markup
from .markup import number
from .shelf import Line


def colour_of(line: Line, shown: str) -> str:
    """Blue for the alignment that every other figure shows, else its own colour."""
    return ALIGNED if line.label == shown else OTHER_COLOURS[line.slot]


def table(lines: Sequence[Line], shown: str, definition: str) -> str:
    """Barriers, L2 cut and R beside unrelated networks, seconds, data, and whether the function was kept."""
    if not lines:
        return ""
    splits = list(max((line.naive for line in lines), key=len, default={}))
    names = list(lines[0].figures)
    head = ["alignment", "settings", *(f"barrier, {split}" for split in splits), *(f"{name} (null)" for name in names)]
    head += ["seconds", "data", "function kept"]
    naive = next((line.naive for line in lines if line.naive), {})
    rows = [["naive", "", *(number(naive[split]) for split in splits), *[""] * (len(names) + 3)]] if naive else []
    rows += [_row(line, splits) for line in lines]
    colours = [NAIVE, *(colour_of(line, shown) for line in lines)][-len(rows) :]
    note = (
        f"Loss barrier, “{definition}”. In brackets: unrelated random networks, matched the same way from the matcher's own start. "
        "R(.5): singular directions of at least half the largest value; R top-8: the eight leading ones."
    )
    return markup.table(head, rows, colours=colours, note=note)


def _row(line: Line, splits: Sequence[str]) -> list[str]:
    settings = "; ".join(part for part in (line.settings, line.ended) if part) or "defaults"
    barriers = [number(line.barriers[split]) if split in line.barriers else "—" for split in splits]
    kept = {None: "not checked", True: "yes", False: "NO"}[line.kept_function]
    figures = [_beside_null(name, *pair) for name, pair in line.figures.items()]
    return [line.label, settings, *barriers, *figures, f"{line.seconds:.2f}", line.data, kept]


def _beside_null(name: str, value: float | None, null: float | None) -> str:
    if value is None:
        return "—"

    def words(figure: float) -> str:
        return f"{100 * figure:.1f} %" if name == "L2 cut" else f"{figure:.3f}"

    return words(value) + ("" if null is None else f" ({words(null)})")


def legend(lines: Sequence[Line], shown: str) -> dict[str, Mapping[str, str]]:
    """What the curves are called and how they are coloured: the one that is shown by its number, once there are others."""
    names = {"aligned": shown} if len(lines) > 1 and shown in {line.label for line in lines} else {}
    return {"words": names, "colours": {line.label: OTHER_COLOURS[line.slot] for line in lines}}


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """The table as plain values, for a report; empty for one alignment, whose figures are there already."""
    return {"alignments of this pair": {line.label: line.plain() for line in lines}} if len(lines) > 1 else {}


def known(profile: xr.Dataset) -> tuple[Any, ...]:
    """What the figure of the curves consists of: which alignments, which have a point, and whether one reaches both ends (it has
    the chord)."""
    measured = profile["measured"].to_numpy()
    names = profile["alignment"].to_numpy().tolist()
    return (*zip(names, (bool(line.any()) for line in measured), strict=True), bool(measured[:, [0, -1]].all(axis=1).any()))
