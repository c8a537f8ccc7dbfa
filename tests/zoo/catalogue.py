"""All entries, by the library they come from."""

from __future__ import annotations

from zoo import decoders, encoders, imagenet, plain, vision
from zoo.entry import PLAIN, TIMM, TORCHVISION, TRANSFORMERS, Catalogue

CATALOGUES: dict[str, Catalogue] = {
    PLAIN: plain.CATALOGUE,
    TRANSFORMERS: Catalogue(TRANSFORMERS, [entry for part in (decoders, encoders, vision) for entry in part.CATALOGUE.entries]),
    TORCHVISION: imagenet.VISION,
    TIMM: imagenet.TIMM_MODELS,
}
