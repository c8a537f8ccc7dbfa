"""What the figures of a comparison say, in one sentence that names the rule it used."""

from __future__ import annotations

import numpy as np
import xarray as xr

from workbench.matching import Alignment

# A path counts as connected when it loses at most one point of accuracy and 0.05 nats against the straight line between its
# ends: on digits and MNIST that is where the seeds of one wide network lie after matching, and narrow ones do not.
ACCURACY_POINTS = 0.01
LOSS_NATS = 0.05
# Without an accuracy there is no absolute scale: then a twentieth of the naive barrier.
SHARE = 0.05
# The aligned model is the anchor itself when this share of the distance is left.
SAME_WEIGHTS = 1e-5


def verdict(alignment: Alignment, barriers: xr.Dataset) -> str:
    """What the figures say, on the first split, with the rule that was used."""
    if alignment.distance_before == 0:
        return "the same weights: the two models are identical"
    if alignment.distance_after <= SAME_WEIGHTS * alignment.distance_before:
        return "one solution up to the symmetries: the aligned weights are the anchor's"
    split = str(barriers["split"].values[0])
    found = {kind: _drops(barriers, kind, split) for kind in ("naive", "aligned")}
    if not all(np.isfinite(v) for pair in found.values() for v in pair.values()):
        return f"undefined: the {split} curves hold values that are not finite"
    rule = f"{split} split; connected means " + (
        f"at most {ACCURACY_POINTS:.0%} of accuracy and {LOSS_NATS} of loss above the line between the ends"
        if "accuracy" in found["naive"]
        else f"at most {SHARE:.0%} of the naive barrier"
    )
    loss = {kind: found[kind]["loss"] for kind in found}
    # Where the loss hardly rises on either line, only the accuracy can have a barrier to remove.
    judged = "accuracy" if "accuracy" in found["naive"] and loss["naive"] <= LOSS_NATS else "loss"
    figures = f"{judged} barrier {found['naive'][judged]:.3g} → {found['aligned'][judged]:.3g}"

    def connected(kind: str) -> bool:
        if "accuracy" in found[kind]:
            return found[kind]["accuracy"] <= ACCURACY_POINTS and loss[kind] <= LOSS_NATS
        return loss[kind] <= SHARE * loss["naive"]

    if (connected("naive") and "accuracy" in found["naive"]) or max(found["naive"].values()) <= 0:
        words = "connected already: the straight path needs no alignment"
    elif connected("aligned"):
        words = "connected after alignment: one basin up to the symmetries"
    elif found["aligned"][judged] <= 0.5 * found["naive"][judged]:
        words = "barrier left: alignment removes the larger part of it, not all"
    else:
        words = "no common basin found: alignment does not remove the barrier"
    return f"{words} ({figures}; {rule})"


def _drops(barriers: xr.Dataset, kind: str, split: str) -> dict[str, float]:
    chosen = {"loss": "loss_barrier_linear", "accuracy": "accuracy_barrier_linear"}
    return {key: float(barriers[v].sel(alignment=kind, split=split)) for key, v in chosen.items() if v in barriers}
