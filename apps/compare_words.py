"""The *Compare* page in words and tables: facts of a comparison, the numbers at one t, the barrier factor by factor."""

from __future__ import annotations

from collections.abc import Mapping

import xarray as xr

from workbench.matching import Alignment
from workbench.plots.style import ALIGNMENT_COLOURS

from . import markup
from .markup import number
from .road import Found

Barriers = Mapping[str, Mapping[str, xr.DataArray]]


def facts(found: Found | None, barriers: Barriers) -> str:
    """Every number with what it is: definition, split, points; a local optimum is called one."""
    if found is None or found.loaded is None:
        return ""
    items = [*_symmetry(found), *(_alignment(found.alignment) if found.alignment is not None else [])]
    for metric in ("loss", *found.loaded.task.metrics):
        known = {name: values[metric] for name, values in barriers.items()}
        if known:
            items.append(_barrier(metric, known))
    verdict = found.comparison.verdict if found.comparison is not None else ""
    choice, loaded = found.choice, found.loaded
    about = f"{choice.moving} moved onto {choice.anchor} · {loaded.model_name} · task {loaded.task.name} · "
    fields = "".join(f", {name}={value}" for name, value in choice.options.items())
    about += f"matcher {choice.matcher}{fields}, seed {choice.seed}" + (f", from {choice.start}" if choice.start else "")
    return markup.facts(items, headline=verdict[:1].upper() + verdict[1:], about="\n".join([about, *loaded.notes]))


def _symmetry(found: Found) -> list[tuple[str, str, str]]:
    if found.symmetry is None:
        return []
    groups = found.symmetry.groups
    proof = found.symmetry.proof
    proved = "proved by test" if proof is not None and proof.passed else "NOT proved"
    sizes = [f"{group.copies} × {group.size}" if group.copies > 1 else str(group.size) for group in groups.values()]
    units = ", ".join(sizes[:4]) + (" …" if len(sizes) > 4 else "")
    factors = f"{len(groups)} factor{'s' * (len(groups) != 1)} of {units} units"
    return [("Permutations that keep the function", markup.power_of_ten(found.symmetry.log10_order()), f"{factors}; {proved}")]


def _alignment(alignment: Alignment) -> list[tuple[str, str, str]]:
    total = sum(permutation.numel() for permutation in alignment.element.permutations.values())
    sweeps = f"{alignment.sweeps} sweep{'s' * (alignment.sweeps != 1)}"
    if alignment.cancelled:
        ended = f"stopped in sweep {alignment.sweeps}: best so far, not converged"
    elif not alignment.sweeps:
        ended = "solved in one pass" if alignment.converged else "nothing was searched"
    elif alignment.converged:
        ended = f"local optimum after {sweeps}"
    else:
        ended = f"not converged after {sweeps}"
    items = [
        (
            "Units moved",
            f"{sum(alignment.units_moved.values())} of {total}",
            f"{ended}; {alignment.seconds:.2f} s, {alignment.data_used}",
        ),
        (
            "Distance of the weights",
            f"{number(alignment.distance_before)} → {number(alignment.distance_after)}",
            f"{100 * alignment.l2_cut:.1f} % less",
        ),
    ]
    kept = alignment.preservation
    if kept is not None:
        difference = f"outputs differ by ≤ {kept.max_abs_change:.1e} on {kept.examples} inputs in {kept.dtype}"
        items.append(("Function kept", "yes" if kept.passed else "NO", difference))
    if alignment.notes:
        items.append(("Note", "", "; ".join(alignment.notes)))
    return items


def _barrier(metric: str, known: Mapping[str, xr.DataArray]) -> tuple[str, str, str]:
    first = next(iter(known.values()))
    splits = [str(split) for split in first["split"].to_numpy()]
    kinds = [name for name in ("naive", "aligned") if name in known]
    values = {split: " → ".join(number(float(known[kind].sel(split=split))) for kind in kinds) for split in splits}
    definition = str(first.attrs.get("definition", "")).partition(":")[0]
    others = "; ".join(f"{split}: {values[split]}" for split in splits[1:])
    how = f"“{definition}”, {first.attrs.get('points')} points, calibration: {first.attrs.get('calibration')}"
    note = f"{' → '.join(kinds)}, {how}. {others}"
    return f"{metric.capitalize()} barrier, {splits[0]}", values[splits[0]], note


def position(at: tuple[float, Mapping[str, xr.Dataset]] | None) -> str:
    """The numbers at one t on every path there is."""
    if at is None:
        return ""
    t, found = at
    columns = _columns(next(iter(found.values())).data_vars)
    rows = [
        [name, *(number(float(values[metric].sel(split=s).squeeze()), percent=metric == "accuracy") for metric, s in columns)]
        for name, values in found.items()
    ]
    colours = [ALIGNMENT_COLOURS[name] for name in found]
    return markup.table([f"t = {t:.2f}", *(f"{split} {metric}" for metric, split in columns)], rows, colours=colours)


def steps(found: Barriers, shown: str) -> str:
    """The barrier of one metric for every set of factors measured so far."""
    if not found:
        return ""
    values = {name: metrics[shown] for name, metrics in found.items() if shown in metrics}
    first = next(iter(values.values()))
    splits = [str(split) for split in first["split"].to_numpy()]
    rows = [[name, *(number(float(line.sel(split=split))) for split in splits)] for name, line in values.items()]
    definition = str(first.attrs.get("definition", "")).partition(":")[0]
    note = f"{shown.capitalize()} barrier, “{definition}”. Untick a factor to leave its units where they were."
    return markup.table(["factors applied", *splits], rows, note=note)


def _columns(variables: Mapping[str, xr.DataArray]) -> list[tuple[str, str]]:
    return [(str(metric), str(split)) for metric, values in variables.items() for split in values["split"].to_numpy()]
