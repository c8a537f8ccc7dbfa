"""All entries, by the library they come from."""

from __future__ import annotations

from zoo import decoders, encoders, vision
from zoo.entry import TRANSFORMERS, Catalogue

_PARTS = (decoders, encoders, vision)

CATALOGUES: dict[str, Catalogue] = {
    TRANSFORMERS: Catalogue(TRANSFORMERS, [entry for part in _PARTS for entry in part.CATALOGUE.entries]),
}
