"""The whole road for two models: symmetry, alignment, proof on data, loss between them, singular vectors, a verdict in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from workbench.barriers import DEFINITIONS, barrier
from workbench.errors import Cancelled
from workbench.matching import Alignment, Matcher
from workbench.profiles import path_points
from workbench.progress import Progress
from workbench.schema import provenance
from workbench.stages import Walk
from workbench.states import StateDict, require_same_tensors
from workbench.symmetry.element import Element
from workbench.symmetry.group import Symmetry
from workbench.tasks import Task, require_task
from workbench.verdict import verdict as verdict_of


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
        verdict = verdict_of(alignment, barriers)
        return cls(symmetry, alignment, profile, barriers, spectra, layers, dict(seconds or {}), verdict)

    @classmethod
    def of_walk(cls, walk: Walk) -> Comparison:
        """A comparison from a walk that has every stage behind it."""
        return cls.of(
            symmetry=walk.symmetry,
            alignment=walk.alignment,
            anchor=walk.anchor,
            moving=walk.moving,
            naive=walk.profiles["naive"],
            aligned=walk.profiles["aligned"],
            spectra=walk.spectra,
            seconds=walk.seconds,
        )

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
    start: Alignment | Element | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """The whole road: π = align(moving → anchor), then loss and metrics from anchor to moving and from anchor to π(moving).

    anchor, moving: state dicts of ``model``; none of the three is changed. symmetry: None discovers it from the model and the
    task's example inputs. matcher: where it looks at data, at the model and the task. spectra=False leaves the singular vectors
    out. progress: called by every stage in turn, see ``Walk``; whatever stage is cancelled, ``Cancelled`` is raised.
    Other parameters as in ``align``, ``profile_path`` and ``singular_alignment``.
    """
    require_task(task)
    require_same_tensors(anchor, moving, names=("anchor", "moving"))
    names = task.chosen(splits)
    path_points(points)  # a wrong number is said before the long work
    walk = Walk(
        anchor,
        moving,
        model,
        task,
        matcher=matcher,
        points=points,
        splits=names,
        gamma=gamma,
        top=top,
        null=null,
        with_spectra=spectra,
        seed=seed,
        device=device,
        start=start,
        symmetry=symmetry,
    )
    while walk.stage is not None:
        walk = walk.advance(progress)
        if walk.alignment is not None and walk.alignment.cancelled:
            raise Cancelled
    return Comparison.of_walk(walk)


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
