"""Weight matching in the metric of the data: directions of a layer count by how much its inputs move along them.

    π = argmax_π Σ_ℓ ⟨ A_ℓ Σ_ℓ(A)^½ , π( B_ℓ Σ_ℓ(B)^½ ) ⟩ ,        Σ_ℓ(M) = E_x[h hᵀ], h the input of layer ℓ in model M

‖(A_ℓ − B_ℓ) Σ^½‖² is the mean squared difference of two layers' outputs on inputs of second moment Σ (Ferbach et al., arXiv
2310.19103, weigh with one Σ). Here each model has its own: Σ(π B) = π Σ(B) πᵀ, so that the weighted weights move like weights and
their norms stay, and the product above is an inner product in which the search is plain weight matching.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from workbench.errors import Cancelled, WorkbenchError
from workbench.matching.data import MatchingData, require_data
from workbench.matching.matcher import Match, matcher
from workbench.matching.problem import MatchingProblem
from workbench.matching.weights import WeightMatching
from workbench.progress import Progress, Reporter
from workbench.states import StateDict
from workbench.twins import twin, watching

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@matcher("covariance", reference="arXiv:2310.19103")
@dataclass(frozen=True)
class CovarianceMatching:
    """Weight matching with every layer weighted by the second moment of its inputs: examples, one forward pass of each model.

    Layers are linear modules and plain convolutions (by input channel); other weights count as they are. examples: how many are
    run at most (0: all); batch_size: at a time; include_biases, restarts, max_sweeps: as in weight matching.
    """

    examples: int = 2000
    batch_size: int = 500
    include_biases: bool = True
    restarts: int = 0
    max_sweeps: int = 100

    needs = "inputs"

    def __post_init__(self) -> None:
        if self.examples < 0 or self.batch_size < 1:
            raise WorkbenchError(
                f"examples={self.examples}, batch_size={self.batch_size}", expected="examples ≥ 0 (0: all), batch_size ≥ 1"
            )
        self._inner()

    def _inner(self) -> WeightMatching:
        return WeightMatching(include_biases=self.include_biases, restarts=self.restarts, max_sweeps=self.max_sweeps)

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        data = require_data(problem.data, "Covariance-weighted matching")
        count = min(self.examples or data.size, data.size)
        reporter = Reporter(progress, "second moments", total=2 * count)
        weighted = []
        try:
            for state in (problem.anchor, problem.moving):
                moments = second_moments(data, state, count, self.batch_size, problem.device, reporter)
                weighted.append(_weighted(state, moments, problem.device))
        except Cancelled:
            start = problem.start if problem.start is not None else problem.symmetry.identity()
            return Match(start, problem.objective(start), converged=False, cancelled=True, data_used=data.words(count))
        found = self._inner().match(problem.on(*weighted), seed=seed, progress=progress)
        plain = [n for n in problem.names if problem.symmetry.tensors[n].shape[1:] and n not in moments]
        notes = (f"not weighted: {', '.join(plain[:5])}{' …' if len(plain) > 5 else ''}",) if plain else ()
        return replace(
            found,
            objective=problem.objective(found.element),
            criterion={"objective of the weighted weights": found.objective},
            data_used=data.words(count),
            notes=(*found.notes, *notes),
        )


def second_moments(
    data: MatchingData, state: StateDict, count: int, batch_size: int, device: torch.device, reporter: Reporter
) -> dict[str, Tensor]:
    """Name of a layer's weight -> E[h hᵀ] of shape (in, in) over the first ``count`` examples and all positions, float64."""
    model = twin(data.model, device=device)
    dtype = next((t.dtype for t in state.values() if t.is_floating_point()), torch.float32)
    dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    weights = {n: t.detach().to(device, dtype if t.is_floating_point() else t.dtype) for n, t in state.items()}
    sums: dict[str, Tensor] = {}
    rows: dict[str, int] = {}
    done = 0

    def place(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)

    with torch.no_grad(), watching(data.model), _recording(model, sums, rows):
        for batch in data.batches(min(batch_size, count)):
            positional = () if isinstance(batch, Mapping) else tuple(place(part) for part in batch)
            named = {name: place(part) for name, part in batch.items()} if isinstance(batch, Mapping) else {}
            functional_call(model, weights, positional, named, tie_weights=False)
            done += batch_size
            reporter.step(advance=min(batch_size, count))
            if done >= count:
                break
    return {name: total / rows[name] for name, total in sums.items()}


@contextmanager
def _recording(model: nn.Module, sums: dict[str, Tensor], rows: dict[str, int]) -> Iterator[None]:
    """While it lasts, the inputs of every linear layer and plain convolution are added up."""

    def hook(name: str) -> Any:
        def add(module: nn.Module, args: tuple[Any, ...]) -> None:
            h = args[0]
            flat = h.movedim(1, -1).flatten(0, -2) if isinstance(module, CONVOLUTIONS) else h.flatten(0, -2)
            share = (flat.mT @ flat).double()
            sums[name] = sums[name] + share if name in sums else share
            rows[name] = rows.get(name, 0) + len(flat)

        return add

    handles = []
    for path, module in model.named_modules():
        plain = isinstance(module, CONVOLUTIONS) and module.groups == 1
        if plain or isinstance(module, nn.Linear):
            name = f"{path}.weight" if path else "weight"
            handles.append(module.register_forward_pre_hook(hook(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _weighted(state: StateDict, moments: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """W Σ^½ along the input axis, scaled to the norm of W, so that no layer outweighs another by the size of its inputs."""
    out = dict(state)
    for name, moment in moments.items():
        weight = state[name].detach().to(device, torch.float64)
        values, vectors = torch.linalg.eigh(moment)
        root = vectors * values.clamp_min(0).sqrt() @ vectors.mT
        turned = torch.tensordot(weight, root, dims=([1], [0])).movedim(-1, 1)
        norm = turned.norm()
        out[name] = turned * (weight.norm() / norm) if norm > 0 else weight
    return out
