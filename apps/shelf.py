"""The alignments of one pair that a visitor has made, kept side by side until another pair is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from workbench.barriers import barrier
from workbench.errors import WorkbenchError

from .factorwise import Factorwise
from .road import Found

MOST = 6  # as many as there are colours that can be told apart; and each holds the weights of a network


@dataclass(frozen=True, eq=False)
class Kept:
    """One alignment. number: the how-manieth of this pair; slot: which colour is its own; parts: its curves factor by factor."""

    number: int
    slot: int
    found: Found
    parts: Factorwise | None = None

    @property
    def label(self) -> str:
        return f"{self.number} · {self.found.choice.matcher}"


class Shelf:
    """``kept`` in the order they were made. They all belong to one pair: same labels, same weights, same task."""

    def __init__(self) -> None:
        self.kept: tuple[Kept, ...] = ()
        self._next = 1

    def __getitem__(self, label: str) -> Kept:
        return next(item for item in self.kept if item.label == label)

    @property
    def labels(self) -> list[str]:
        return [item.label for item in self.kept]

    def belongs(self, found: Found) -> bool:
        """Whether ``found`` is about the pair that is kept here; its weights count once they are read."""
        if not self.kept:
            return True
        mine = self.kept[0].found
        same = found.loaded is None or mine.loaded.identity == found.loaded.identity
        return same and mine.choice.pair == found.choice.pair

    def require_room(self) -> None:
        if len(self.kept) >= MOST:
            raise WorkbenchError(
                f"{MOST} alignments of this pair are kept", expected=f"at most {MOST}", next_step="remove one, then press Align"
            )

    def number(self) -> int:
        """A number for the next alignment."""
        self._next += 1
        return self._next - 1

    def put(self, number: int, found: Found, parts: Factorwise | None) -> Kept:
        """Keep ``found``, in place of what was kept under its number."""
        for index, item in enumerate(self.kept):
            if item.number == number:
                renewed = replace(item, found=found, parts=parts)
                self.kept = (*self.kept[:index], renewed, *self.kept[index + 1 :])
                return renewed
        taken = {item.slot for item in self.kept}
        new = Kept(number, next(slot for slot in range(MOST + 1) if slot not in taken), found, parts)
        self.kept = (*self.kept, new)
        return new

    def remove(self, label: str) -> None:
        self.kept = tuple(item for item in self.kept if item.label != label)

    def clear(self) -> None:
        self.kept, self._next = (), 1


@dataclass(frozen=True)
class Line:
    """The figures of one alignment, None where a stage is missing. barriers: split -> loss barrier, naive and aligned."""

    label: str
    slot: int
    settings: str
    barriers: Mapping[str, float]
    naive: Mapping[str, float]
    figures: Mapping[str, tuple[float | None, float | None]]  # name -> (value, that of unrelated networks)
    seconds: float
    data: str
    kept_function: bool | None
    ended: str

    def plain(self) -> dict[str, Any]:
        """For a report: one flat mapping."""
        out: dict[str, Any] = {"settings": self.settings or "defaults"}
        out |= {f"loss barrier, {split}": value for split, value in self.barriers.items()}
        for name, (value, null) in self.figures.items():
            out |= {name: value, f"{name}, null": null}
        return out | {"seconds": self.seconds, "data": self.data, "function kept": self.kept_function, "ended": self.ended}


def line_of(item: Kept, definition: str) -> Line:
    """What the table says of one alignment."""
    found, alignment = item.found, item.found.alignment
    known = {name: barrier(found.profiles[name], "loss", definition) for name in ("naive", "aligned") if name in found.profiles}
    values = {name: {str(s): float(b.sel(split=s)) for s in b["split"].to_numpy()} for name, b in known.items()}
    if alignment.cancelled:
        ended = "stopped, best so far"
    else:
        ended = "" if alignment.converged or not alignment.sweeps else "not converged"
    return Line(
        item.label,
        item.slot,
        found.choice.words,
        values.get("aligned", {}),
        values.get("naive", {}),
        _figures(alignment.l2_cut, found.spectra),
        alignment.seconds,
        alignment.data_used,
        None if alignment.preservation is None else alignment.preservation.passed,
        ended,
    )


def _figures(l2_cut: float, spectra: xr.Dataset | None) -> dict[str, tuple[float | None, float | None]]:
    """L2 cut, R and R of the leading directions, each beside what unrelated networks give."""
    found: dict[str, tuple[float | None, float | None]] = {"L2 cut": (l2_cut, None), "R(.5)": (None, None), "R top-8": (None, None)}
    if spectra is None:
        return found
    after = spectra.sel(stage="after")
    found["L2 cut"] = l2_cut, _number(spectra.get("null_l2_cut"))
    for name, variable, choice in (("R(.5)", "R_total", {"gamma": 0.5}), ("R top-8", "R_top_total", {"top": 8})):
        found[name] = _number(after[variable].sel(choice)), (
            _number(after[f"null_{variable}"].sel(choice)) if f"null_{variable}" in after else None
        )
    return found


def _number(value: xr.DataArray | None) -> float | None:
    return None if value is None else float(value)


def side_by_side(base: xr.Dataset | None, others: Mapping[str, xr.Dataset]) -> xr.Dataset | None:
    """The live curves and finished profiles of other alignments in one Dataset over (alignment, split, t) with ``measured``.

    Grids of t may differ: a point that one of them lacks is not measured there.
    """
    pieces = [] if base is None else [base]
    for label, profile in others.items():
        one = profile.drop_attrs(deep=False).expand_dims(alignment=[label])
        one["measured"] = (("alignment", "t"), np.ones((1, profile.sizes["t"]), dtype=bool), {})
        pieces.append(one)
    if len(pieces) < 2:
        return pieces[0] if pieces else None
    grid = np.unique(np.concatenate([piece["t"].to_numpy() for piece in pieces]))
    spread = [
        piece.drop_vars("measured").reindex(t=grid).assign(measured=piece["measured"].reindex(t=grid, fill_value=False))
        for piece in pieces
    ]
    return xr.concat(spread, dim="alignment", combine_attrs="override")
