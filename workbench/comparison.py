"""The whole road for two models: symmetry, alignment, proof on data, loss between them, singular vectors, a verdict in words."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from workbench.barriers import DEFINITIONS, barrier
from workbench.errors import Cancelled
from workbench.matching import Alignment, Matcher, align
from workbench.paths import LinearPath
from workbench.profiles import path_points, profile_path
from workbench.progress import Progress
from workbench.schema import provenance
from workbench.spectra import singular_alignment
from workbench.states import StateDict, require_same_tensors
from workbench.symmetry import discover_symmetry
from workbench.symmetry.group import Symmetry
from workbench.tasks import Task, require_task

# A path counts as connected when it loses at most one point of accuracy and 0.05 nats against the straight line between its
# ends: on digits and MNIST that is where the seeds of one wide network lie after matching, and narrow ones do not.
ACCURACY_POINTS = 0.01
LOSS_NATS = 0.05
# Without an accuracy there is no absolute scale: then a twentieth of the naive barrier.
SHARE = 0.05
# The aligned model is the anchor itself when this share of the distance is left.
SAME_WEIGHTS = 1e-5

# How many examples the function-preservation check runs.
CHECKED = 256


@dataclass(frozen=True)
class Comparison:
    """Two models compared. profile: loss and metrics over (alignment, split, t), alignment being "naive" or "aligned".

    barriers: one DataArray per metric and definition in one Dataset, over (alignment, split); spectra: see
    ``singular_alignment`` (None where it was not asked for); layers: cosine and distance per tensor, before and after;
    seconds: stage -> wall-clock; verdict: one sentence, with the thresholds it used.
    """

    symmetry: Symmetry
    alignment: Alignment
    profile: xr.Dataset
    barriers: xr.Dataset
    spectra: xr.Dataset | None
    layers: xr.Dataset
    seconds: Mapping[str, float]
    verdict: str

    @classmethod
    def of(
        cls,
        *,
        symmetry: Symmetry,
        alignment: Alignment,
        anchor: StateDict,
        moving: StateDict,
        naive: xr.Dataset,
        aligned: xr.Dataset,
        spectra: xr.Dataset | None = None,
        seconds: Mapping[str, float] | None = None,
    ) -> Comparison:
        """A comparison from the results of its stages; naive, aligned: profiles along the two straight paths."""
        order = xr.DataArray(["naive", "aligned"], dims="alignment", name="alignment")
        profile = xr.concat([naive, aligned], dim=order, combine_attrs="override")
        barriers = _barriers(profile)
        layers = _layers(anchor, moving, alignment.aligned, symmetry)
        verdict = _verdict(alignment, barriers)
        return cls(symmetry, alignment, profile, barriers, spectra, layers, dict(seconds or {}), verdict)

    def summary(self) -> dict[str, Any]:
        """Everything but weights and curves as plain numbers and texts that JSON can hold (an undefined number is None)."""
        return {
            "verdict": self.verdict,
            "alignment": self.alignment.summary(),
            "barriers": {
                str(name): {
                    kind: {split: _plain(values.sel(alignment=kind, split=split)) for split in values["split"].values.tolist()}
                    for kind in ("naive", "aligned")
                }
                | {"definition": values.attrs["definition"], "units": values.attrs["units"]}
                for name, values in self.barriers.items()
            },
            "ends": {
                metric: {
                    split: {
                        which: _plain(self.profile[metric].sel(alignment="naive", split=split).isel(t=place))
                        for which, place in (("anchor", 0), ("moving", -1))
                    }
                    for split in self.profile["split"].values.tolist()
                }
                for metric in map(str, self.profile.data_vars)
            },
            "spectra": None if self.spectra is None else _spectra_summary(self.spectra),
            "layers": {
                name: {str(v): _plain(self.layers[v].sel(tensor=name)) for v in self.layers.data_vars}
                for name in self.layers["tensor"].values.tolist()
            },
            "symmetry": {
                "log10_order": self.symmetry.log10_order(),
                "coverage": self.symmetry.coverage,
                "groups": {name: {"size": g.size, "copies": g.copies} for name, g in self.symmetry.groups.items()},
                "proof": None
                if self.symmetry.proof is None
                else {"passed": self.symmetry.proof.passed, "max_relative_error": self.symmetry.proof.max_relative_error},
                "unknown_ops": dict(self.symmetry.unknown_ops),
            },
            "points": int(self.profile.sizes["t"]),
            "calibration": self.profile.attrs.get("calibration", "none"),
            "seconds": dict(self.seconds),
        }

    def to_dataset(self) -> xr.Dataset:
        """One Dataset for a file: profile, barriers, layers, and spectra with the prefix "spectra_" before their names."""
        parts = [self.profile, self.barriers, self.layers]
        if self.spectra is not None:
            parts.append(self.spectra.rename({name: f"spectra_{name}" for name in self.spectra.data_vars}))
        merged = xr.merge(parts, combine_attrs="drop_conflicts")
        merged.attrs = provenance(
            seed=self.alignment.seed,
            settings={k: v for k, v in self.alignment.settings.items() if k != "versions"},
            task=self.profile.attrs.get("task", ""),
            calibration=self.profile.attrs.get("calibration", "none"),
            verdict=self.verdict,
        )
        return merged


def compare(
    anchor: StateDict,
    moving: StateDict,
    model: nn.Module,
    task: Task,
    *,
    symmetry: Symmetry | None = None,
    matcher: str | Matcher = "weights",
    points: int | Sequence[float] = 25,
    splits: Iterable[str] | None = ("train", "test"),
    gamma: Sequence[float] = (0.0, 0.3, 0.5),
    top: Sequence[int] = (8,),
    spectra: bool = True,
    null: bool = True,
    seed: int = 0,
    device: str | torch.device = "auto",
    progress: Progress | None = None,
) -> Comparison:
    """The whole road: π = align(moving → anchor), then loss and metrics from anchor to moving and from anchor to π(moving).

    anchor, moving: state dicts of ``model``; none of the three is changed. symmetry: None discovers it from the model and the
    task's example inputs. spectra=False leaves the singular vectors out. progress: called by every stage in turn ("matching",
    "profile naive", "profile aligned", "singular vectors"); whatever stage is cancelled, ``Cancelled`` is raised.
    Other parameters as in ``align``, ``profile_path`` and ``singular_alignment``.
    """
    require_task(task)
    require_same_tensors(anchor, moving, names=("anchor", "moving"))
    names = task.chosen(splits)
    path_points(points)  # a wrong number is said before the long work
    watch = _Watch()
    if symmetry is None:
        symmetry = watch.time("symmetry", discover_symmetry, model, task.example_inputs)
    inputs = task.split(names[0])[0][:CHECKED]
    alignment = watch.time(
        "matching",
        align,
        symmetry,
        anchor,
        moving,
        matcher,
        seed=seed,
        device=device,
        model=model,
        inputs=inputs,
        progress=progress,
    )
    if alignment.cancelled:
        raise Cancelled
    profiles = {}
    for kind, end in (("naive", moving), ("aligned", alignment.aligned)):
        profiles[kind] = watch.time(
            f"profile {kind}",
            profile_path,
            LinearPath(anchor, end),
            model,
            task,
            points=points,
            splits=names,
            device=device,
            progress=progress,
            stage=f"profile {kind}",
        )
    measured = None
    if spectra:
        measured = watch.time(
            "singular vectors",
            singular_alignment,
            anchor,
            moving,
            aligned=alignment.aligned,
            symmetry=symmetry,
            matcher=matcher,
            gamma=gamma,
            top=top,
            null=null,
            seed=seed,
            device=device,
            progress=progress,
        )
    return Comparison.of(
        symmetry=symmetry,
        alignment=alignment,
        anchor=anchor,
        moving=moving,
        naive=profiles["naive"],
        aligned=profiles["aligned"],
        spectra=measured,
        seconds=watch.seconds,
    )


class _Watch:
    """Wall-clock seconds per stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, stage: str, function: Any, /, *args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = function(*args, **options)
        self.seconds[stage] = time.perf_counter() - start
        return result


def _barriers(profile: xr.Dataset) -> xr.Dataset:
    """``<metric>_barrier_<definition>`` for every metric and definition (the midpoint only where the profile holds it)."""
    out = {}
    middle = bool(np.isclose(profile["t"].values, 0.5, rtol=0, atol=1e-9).any())
    for metric in map(str, profile.data_vars):
        for definition in DEFINITIONS:
            if definition != "midpoint" or middle:
                out[f"{metric}_barrier_{definition}"] = barrier(profile, metric, definition)
    return xr.Dataset(out)


def _layers(anchor: StateDict, moving: StateDict, aligned: StateDict, symmetry: Symmetry) -> xr.Dataset:
    """Cosine and distance to the anchor, per float tensor, before and after."""
    names = [n for n, t in anchor.items() if t.is_floating_point() and t.numel() and n not in symmetry.aliases]
    rows = {"cosine": [], "distance": []}
    for name in names:
        a = anchor[name].detach().double().flatten()
        pair = [state[name].detach().double().flatten().to(a.device) for state in (moving, aligned)]
        norms = [float(a.norm() * other.norm()) for other in pair]
        rows["cosine"].append([float(a @ other) / norm if norm else np.nan for other, norm in zip(pair, norms, strict=True)])
        rows["distance"].append([float((a - other).norm()) for other in pair])
    data = {}
    for kind, definition in (("cosine", "⟨a, b⟩ / (‖a‖ ‖b‖)"), ("distance", "‖a − b‖")):
        for column, when in enumerate(("before", "after")):
            values = np.array(rows[kind]).reshape(-1, 2)[:, column]
            data[f"{kind}_{when}"] = ("tensor", values, {"units": "1", "definition": f"{definition}, {when} matching"})
    return xr.Dataset(data, coords={"tensor": names})


def _verdict(alignment: Alignment, barriers: xr.Dataset) -> str:
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


def _spectra_summary(spectra: xr.Dataset) -> dict[str, Any]:
    """Totals by stage and threshold, beside their nulls, and the L2 cut."""
    out: dict[str, Any] = {}
    for name, values in spectra.data_vars.items():
        if str(name).endswith("_total"):
            dimension = "gamma" if "gamma" in values.dims else "top"
            out[str(name).removesuffix("_total")] = {
                stage: {
                    f"{choice:g}": _plain(values.sel({"stage": stage, dimension: choice})) for choice in values[dimension].values
                }
                for stage in values["stage"].values.tolist()
            }
    return out | {name: _plain(spectra[name]) for name in ("l2_cut", "null_l2_cut") if name in spectra}


def _plain(value: xr.DataArray) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None
