"""Which singular directions of two networks agree, layer by layer, beside what unrelated networks give.

For a layer with thin SVDs W_a = U_a Σ_a V_aᵀ and W_b = U_b Σ_b V_bᵀ, and k_a, k_b leading directions kept,

    R = Σ_{i ≤ k_a, j ≤ k_b} (u_i^a · u_j^b)(v_i^a · v_j^b) / min(k_a, k_b) = ⟨polar(W_a), polar(W_b)⟩_F / min(k_a, k_b)

where polar(W) = Σ_kept u_i v_iᵀ sets the kept singular values to one (Ito et al., arXiv 2402.04051). So the signs of single
vectors cancel, |R| ≤ 1, and R(W, W) = 1. R(γ) keeps the directions with σ_i ≥ γ σ_max of their own layer and model, R_top(k) the
first k. A total is the sum of the layers' numerators over the sum of their denominators.

A matrix is the weight as (first axis, everything else): a convolution as (out, in·k·k). Biases and norm gains have no singular
vectors and do not count. Matching itself creates some R and some L2 cut between unrelated networks, and γ keeps far more
directions in those: read every figure beside its null, and best the null that keeps the same number of directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from workbench.devices import resolve_device
from workbench.errors import Cancelled, WorkbenchError
from workbench.matching import Matcher, align
from workbench.matching.matcher import matcher_needs
from workbench.matching.problem import cost_tensors
from workbench.progress import Progress, Reporter, Step
from workbench.schema import provenance
from workbench.states import StateDict, distance, require_finite, require_same_tensors
from workbench.symmetry.group import Symmetry
from workbench.tasks import Task

STAGES = ("before", "after")


@dataclass(frozen=True)
class Spectrum:
    """Thin SVD of one weight as (first axis, rest), numerically zero directions cut off: U (m, r), S (r,), V (n, r), float64."""

    U: Tensor
    S: Tensor
    V: Tensor

    @classmethod
    def of(cls, weight: Tensor, device: torch.device) -> Spectrum:
        matrix = weight.detach().to(device, torch.float64).flatten(1)
        U, S, Vh = torch.linalg.svd(matrix, full_matrices=False)
        # Below rounding of the largest one, a singular vector is arbitrary: such a direction is not kept by any γ.
        floor = max(matrix.shape) * torch.finfo(torch.float64).eps * (S[0] if len(S) else 0.0)
        rank = int((floor < S).sum())
        return cls(U[:, :rank], S[:rank], Vh[:rank].mT)

    def kept(self, gamma: float) -> int:
        """Number of directions with σ_i ≥ γ σ_max (0 for a zero layer)."""
        return int((gamma * self.S[0] <= self.S).sum()) if len(self.S) else 0


class Agreement:
    """R of one layer for any number of kept directions, from one product: cumulative sums of (u_i·u_j)(v_i·v_j)."""

    def __init__(self, first: Spectrum, second: Spectrum) -> None:
        pairs = (first.U.mT @ second.U) * (first.V.mT @ second.V)
        self._sums = torch.zeros(pairs.shape[0] + 1, pairs.shape[1] + 1, dtype=torch.float64)
        self._sums[1:, 1:] = pairs.cumsum(0).cumsum(1).cpu()

    def numerator(self, first: int, second: int) -> float:
        """⟨polar, polar⟩ of the ``first`` and ``second`` leading directions (fewer where the rank is smaller)."""
        rows, columns = self._sums.shape
        return float(self._sums[min(first, rows - 1), min(second, columns - 1)])


def weight_matrices(symmetry: Symmetry | None, state: StateDict) -> tuple[str, ...]:
    """The tensors that have singular vectors: float weights with at least two axes, tied ones once."""
    names = cost_tensors(symmetry) if symmetry is not None else tuple(state)
    return tuple(name for name in names if state[name].is_floating_point() and state[name].dim() > 1)


def singular_alignment(
    anchor: StateDict,
    moving: StateDict,
    *,
    aligned: StateDict | None = None,
    symmetry: Symmetry | None = None,
    matcher: str | Matcher = "weights",
    model: nn.Module | None = None,
    task: Task | None = None,
    gamma: Sequence[float] = (0.0, 0.3, 0.5),
    top: Sequence[int] = (8,),
    null: bool = True,
    null_samples: int = 1,
    seed: int = 0,
    device: str | torch.device = "auto",
    progress: Progress | None = None,
) -> xr.Dataset:
    """R of ``anchor`` with ``moving`` (stage "before") and with ``aligned`` (stage "after"), per layer and total, beside its null.

    aligned: π(moving); None with a symmetry matches here (``matcher``, ``seed``), None without one gives stage "before" only
    model, task: for a matcher that looks at data; it then sees the same data with unrelated networks
    gamma: thresholds in [0, 1), relative to the layer's largest singular value; top: numbers of leading directions
    null: also do the same with ``null_samples`` pairs of unrelated Gaussian networks (each tensor's entries with the standard
    deviation of the anchor's, one-axis tensors with its mean too), matched the same way; needs the symmetry

    Returns, over (stage, gamma | top, layer), with ``_total`` twins without the layer:
      R, R_top                  the trained pair
      null_R, null_R_top        unrelated networks (mean over samples), the same γ or the same k
      null_R_same_k             unrelated networks that keep as many directions as the trained pair does at that γ
      kept(model, gamma, layer), null_kept(gamma, layer)        numbers of directions kept
      singular_values(model, layer, rank)                       unchanged by permutations; NaN beyond a layer's rank
      distance(stage), l2_cut, null_l2_cut                      ‖anchor − other‖, and by what share matching lowers it

    A layer without any kept direction (all zero) has R = 0 and adds nothing to a total. Raises ``WorkbenchError`` for non-finite
    weights, γ outside [0, 1), k < 1; ``Cancelled`` where progress raises it.
    """
    gamma, top = tuple(dict.fromkeys(float(g) for g in gamma)), tuple(dict.fromkeys(int(k) for k in top))
    _require_choices(gamma, top, null_samples if null else 1)
    require_same_tensors(anchor, moving, names=("anchor", "moving"))
    require_finite(anchor, "anchor")
    require_finite(moving, "moving")
    where = resolve_device(device)
    data = {} if matcher_needs(matcher) == "nothing" else {"model": model, "task": task}
    layers = weight_matrices(symmetry, anchor)
    if not layers:
        raise WorkbenchError("The model has no weight with two or more axes, so there are no singular vectors to compare")
    null = null and symmetry is not None
    samples = null_samples if null else 0
    reporter = Reporter(progress, "singular vectors", total=len(layers) * (1 + 2 * samples))
    if aligned is None and symmetry is not None:
        aligned = _matched(symmetry, anchor, moving, matcher, seed, where, data, progress)
    trained = _Pair(anchor, moving, aligned, layers, where, reporter)
    unrelated = []
    for sample in range(samples):
        first, second = (gaussian_like(anchor, seed=seed + 2 * sample + which) for which in range(2))
        matched = _matched(symmetry, first, second, matcher, seed, where, data, progress)
        unrelated.append(_Pair(first, second, matched, layers, where, reporter))
    dataset = _dataset(trained, unrelated, gamma, top)
    dataset.attrs = provenance(
        seed=seed,
        settings={
            "matcher": matcher if isinstance(matcher, str) else repr(matcher),
            "null_samples": samples,
            "matrix": "(first axis, all other axes); a convolution is (out, in·k·k)",
            "null": "Gaussian entries with the anchor's standard deviation per tensor" if null else "not computed",
        },
    )
    return dataset


def _matched(
    symmetry: Symmetry,
    anchor: StateDict,
    moving: StateDict,
    matcher: str | Matcher,
    seed: int,
    device: torch.device,
    data: dict[str, Any],
    progress: Progress | None,
) -> dict[str, Tensor]:
    """π(moving). Half a match would be no null, so a cancelled one raises."""

    def under_own_name(step: Step) -> None:
        if progress is not None:
            progress(replace(step, stage="singular vectors: matching"))

    found = align(symmetry, anchor, moving, matcher, seed=seed, device=device, progress=under_own_name, **data)
    if found.cancelled:
        raise Cancelled
    return found.aligned


def _require_choices(gamma: tuple[float, ...], top: tuple[int, ...], samples: int) -> None:
    if not gamma or not all(0 <= g < 1 for g in gamma):
        raise WorkbenchError(f"gamma={gamma}", expected="thresholds in [0, 1), relative to the layer's largest singular value")
    if not all(k >= 1 for k in top):
        raise WorkbenchError(f"top={top}", expected="numbers of directions, each at least 1")
    if samples < 1:
        raise WorkbenchError(f"null_samples={samples}", expected="at least 1, or null=False")


def gaussian_like(state: StateDict, *, seed: int) -> dict[str, Tensor]:
    """A random network of the same shapes and scales: N(0, s.d. of the tensor) for weights, N(mean, s.d.) for one-axis tensors.

    Every float parameter is drawn from one generator in the order of the names; running statistics and integer buffers are copied.
    """
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, tensor in state.items():
        if not tensor.is_floating_point() or name.rpartition(".")[2].startswith("running_"):
            out[name] = tensor.detach().clone()
            continue
        drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        values = tensor.detach().double().cpu()
        spread = values.std(correction=0) if values.numel() > 1 else values.new_zeros(())
        centre = values.mean() if tensor.dim() < 2 else values.new_zeros(())
        out[name] = (centre + spread * drawn).to(tensor.device, tensor.dtype)
    return out


class _Pair:
    """Two networks, before and after matching: spectra and agreements of every layer."""

    def __init__(
        self,
        anchor: StateDict,
        moving: StateDict,
        aligned: StateDict | None,
        layers: tuple[str, ...],
        device: torch.device,
        reporter: Reporter,
    ) -> None:
        self.layers = layers
        self.stages = STAGES if aligned is not None else STAGES[:1]
        others = {"before": moving} | ({"after": aligned} if aligned is not None else {})
        self.spectra: dict[str, tuple[Spectrum, Spectrum]] = {}
        self.agreements: dict[tuple[str, str], Agreement] = {}
        for name in layers:
            first = Spectrum.of(anchor[name], device)
            for stage, other in others.items():
                second = Spectrum.of(other[name], device)
                self.agreements[stage, name] = Agreement(first, second)
                if stage == "before":
                    self.spectra[name] = first, second
            reporter.step()
        floats = [name for name in anchor if not name.rpartition(".")[2].startswith(("running_", "num_batches"))]
        self.distances = [distance(anchor, other, floats) for other in others.values()]

    @property
    def l2_cut(self) -> float:
        before, after = self.distances[0], self.distances[-1]
        return 1 - after / before if before else 0.0

    def by_gamma(self, gamma: float) -> list[tuple[int, int]]:
        """Kept directions of both models, per layer."""
        return [tuple(spectrum.kept(gamma) for spectrum in self.spectra[name]) for name in self.layers]

    def by_count(self, k: int) -> list[tuple[int, int]]:
        return [tuple(min(k, len(spectrum.S)) for spectrum in self.spectra[name]) for name in self.layers]

    def measure(self, counts: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """R (stage, layer) and its total (stage,) for the given numbers of kept directions per layer."""
        weight = np.array([min(pair) for pair in counts], dtype=float)
        top = np.array(
            [[self.agreements[s, n].numerator(*c) for n, c in zip(self.layers, counts, strict=True)] for s in self.stages]
        )
        layered = np.divide(top, weight, out=np.zeros_like(top), where=weight > 0)
        return layered, top.sum(1) / weight.sum() if weight.sum() else np.zeros(len(top))


def _dataset(trained: _Pair, unrelated: list[_Pair], gamma: tuple[float, ...], top: tuple[int, ...]) -> xr.Dataset:
    data: dict[str, xr.DataArray] = {}
    for name, pairs, counts_of, dimension, choices, definition in _plans(trained, unrelated, gamma, top):
        measured = [[pair.measure(counts_of(pair, choice)) for choice in choices] for pair in pairs]
        for suffix, which, dims in (("", 0, ("stage", dimension, "layer")), ("_total", 1, ("stage", dimension))):
            values = np.mean([[found[which] for found in sample] for sample in measured], axis=0)
            attrs = {"units": "1", "definition": definition + (", total over layers" if suffix else "")}
            data[name + suffix] = xr.DataArray(np.moveaxis(values, 0, 1), dims=dims, attrs=attrs)
    counted = "number of directions with σ ≥ γ σ_max"
    kept = np.array([trained.by_gamma(g) for g in gamma])
    data["kept"] = xr.DataArray(
        np.moveaxis(kept, 2, 0), dims=("model", "gamma", "layer"), attrs={"units": "1", "definition": counted}
    )
    if unrelated:
        values = np.mean([[[min(c) for c in pair.by_gamma(g)] for g in gamma] for pair in unrelated], axis=0)
        definition = f"{counted}, the smaller of the two unrelated networks"
        data["null_kept"] = xr.DataArray(values, dims=("gamma", "layer"), attrs={"units": "1", "definition": definition})
        data["null_l2_cut"] = _number(float(np.mean([pair.l2_cut for pair in unrelated])), "l2_cut of unrelated Gaussian networks")
    if len(trained.stages) > 1:
        data["l2_cut"] = _number(trained.l2_cut, "1 − ‖anchor − aligned‖ / ‖anchor − moving‖ over all float parameters")
    data["distance"] = xr.DataArray(trained.distances, dims="stage", attrs={"units": "1", "definition": "‖anchor − other‖"})
    data["singular_values"] = _singular_values(trained)
    coords = {
        "stage": list(trained.stages),
        "gamma": list(gamma),
        "top": list(top),
        "layer": list(trained.layers),
        "model": ["anchor", "moving"],
    }
    return xr.Dataset(data, coords=coords)


def _plans(trained: _Pair, unrelated: list[_Pair], gamma: tuple[float, ...], top: tuple[int, ...]) -> Iterator[tuple]:
    """(variable, pairs, kept directions, dimension, its values, definition) of everything that is an R."""
    formula = "⟨polar(W_a), polar(W_b)⟩ / min(k_a, k_b)"
    yield "R", [trained], _Pair.by_gamma, "gamma", gamma, f"{formula}, directions with σ ≥ γ σ_max"
    if top:
        yield "R_top", [trained], _Pair.by_count, "top", top, f"{formula}, the k leading directions"
    if unrelated:
        yield "null_R", unrelated, _Pair.by_gamma, "gamma", gamma, "R of unrelated Gaussian networks, matched the same way, same γ"
        yield (
            "null_R_same_k",
            unrelated,
            lambda pair, g: trained.by_gamma(g),
            "gamma",
            gamma,
            "R of unrelated Gaussian networks, matched the same way, with as many directions as the trained pair keeps",
        )
        if top:
            yield "null_R_top", unrelated, _Pair.by_count, "top", top, "R_top of unrelated Gaussian networks, matched the same way"


def _singular_values(pair: _Pair) -> xr.DataArray:
    longest = max(max(len(s.S) for s in spectra) for spectra in pair.spectra.values())
    values = np.full((2, len(pair.layers), longest), np.nan)
    for column, name in enumerate(pair.layers):
        for row, spectrum in enumerate(pair.spectra[name]):
            values[row, column, : len(spectrum.S)] = spectrum.S.cpu().numpy()
    attrs = {"units": "1", "definition": "singular values, largest first; NaN beyond the rank"}
    return xr.DataArray(values, dims=("model", "layer", "rank"), attrs=attrs)


def _number(value: float, definition: str) -> xr.DataArray:
    return xr.DataArray(value, attrs={"units": "1", "definition": definition})
