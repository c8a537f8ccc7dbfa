"""Several alignments of one pair side by side: what was found is kept, shown again, laid beside another, started from, removed.

Every alignment keeps its number while its pair is looked at. One of them is *shown*: every figure of the page is about it.
"""

from __future__ import annotations

import param
import xarray as xr
from param.parameterized import batch_call_watchers

from workbench.barriers import DEFINITIONS

from . import road
from .factorwise import Factorwise
from .shelf import Kept, Shelf, line_of, side_by_side
from .working import Working

OWN_START = "the matcher's own"
NONE = "none of these"


class Keeping(Working):
    """A state that makes alignments. ``_number`` is that of the alignment being made or shown, 0 for none.

    It has ``found``, and can ``_forget`` what is shown, ``_show`` a ``road.Found``, and ``_publish`` its curves.
    """

    kept = param.Parameter(default=(), doc="The alignments of this pair, a tuple of shelf.Kept.")
    lines = param.Parameter(default=(), doc="Their figures, a tuple of shelf.Line.")
    shown = param.Selector(default=NONE, objects=[NONE], label="Shown in the figures")
    overlaid = param.ListSelector(default=[], objects=[], label="Curves beside the one shown")
    start = param.Selector(default=OWN_START, objects=[OWN_START], label="Start from")
    definition = param.Selector(default="linear", objects=list(DEFINITIONS), label="Barrier definition")

    def __init__(self, *arguments: object, **params: object) -> None:
        super().__init__(*arguments, **params)
        self._shelf, self._number = Shelf(), 0
        self._drawn: tuple[int, frozenset[str]] = (0, frozenset())  # what the last published curves were of

    def _keep(self) -> None:
        """Put what was found under its number, once there is an alignment."""
        if self.found is not None and self.found.alignment is not None:
            self._settle(self._shelf.put(self._number, self.found, self._parts))

    def _settle(self, shown: Kept | None) -> None:
        """Offer what is kept; curves of new ones lie beside the others unless a visitor takes them away."""
        labels = self._shelf.labels
        before = {item.label for item in self.kept}
        with batch_call_watchers(self):  # figures are drawn once, when all of it is settled
            # A list that loses the option it shows falls back to its first one: that must be the one that asks for nothing.
            self.param.shown.objects = [NONE, *labels]
            self.param.overlaid.objects = labels
            self.param.start.objects = [OWN_START, *labels]
            self.param.update(
                kept=self._shelf.kept,
                overlaid=[label for label in labels if label in self.overlaid or label not in before],
                shown=NONE if shown is None else shown.label,
                start=self.start if self.start in labels else OWN_START,
            )
            self._measure_lines()

    @param.depends("definition", watch=True)
    def _measure_lines(self) -> None:
        self.lines = tuple(line_of(item, self.definition) for item in self._shelf.kept)

    @param.depends("overlaid", watch=True)
    def _overlay(self) -> None:
        if self._drawn != (self._number, frozenset(self.overlaid)):
            self._publish()

    @param.depends("shown", watch=True)
    def _switch(self) -> None:
        """Let every figure show another alignment of this pair."""
        now = next((item.label for item in self._shelf.kept if item.number == self._number), NONE)
        if self.shown == now or self.status == "running":
            return
        if self.shown == NONE:
            self.shown = now
            return
        item = self._shelf[self.shown]
        with batch_call_watchers(self):
            self._forget()
            self._number = item.number
            self._settle(item)
            self._show(item.found)
            self._publish()
            whole = item.found.comparison is not None
            words = f"Shown: {item.label}" + ("." if whole else ", which was stopped. Continue measures what is missing.")
            self.param.update(status="done" if whole else "stopped", can_resume=not whole, fraction=None, message=words)

    def remove(self) -> None:
        """Forget the alignment that is shown; the last of the others is shown then."""
        if self.status == "running" or self.shown == NONE:
            return
        self._shelf.remove(self.shown)
        with batch_call_watchers(self):
            self._forget()
            self._number = 0
            self.param.update(status="idle", can_resume=False, fraction=None, message="")
            self._settle(None)
            if self._shelf.kept:
                self.shown = self._shelf.labels[-1]

    def _beside(self, own: xr.Dataset | None) -> xr.Dataset | None:
        """The curves of what is shown, and those of the others that are to lie beside them."""
        self._drawn = (self._number, frozenset(self.overlaid))
        others = [item for item in self._shelf.kept if item.label in self.overlaid and item.number != self._number]
        curves = {item.label: item.found.profiles["aligned"] for item in others if "aligned" in item.found.profiles}
        return side_by_side(own, curves)

    def _known_parts(self, found: road.Found) -> Factorwise | None:
        """The curves factor by factor that were measured of this very alignment before."""
        for item in self._shelf.kept:
            if item.number == self._number and item.found.alignment is found.alignment:
                return item.parts
        return None
