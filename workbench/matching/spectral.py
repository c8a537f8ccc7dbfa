"""Spectral matching: weight matching on the leading singular directions of every layer.

    π = argmax_π Σ_ℓ ⟨A_ℓ^(k), π(B_ℓ^(k))⟩ ,       W^(k): the best rank-k approximation of W

Permutations move singular vectors and leave singular values alone (Ito et al., arXiv 2402.04051, theorem 4.1), so truncation
commutes with the symmetry. The trailing directions of a trained layer are close to those of its random initialisation: in two
networks they have nothing in common, and yet they make up most of the squared norm that weight matching looks at.

The annealed start goes through ranks k₁ < k₂ < … < full, each from the answer of the one before: it climbs the objective of plain
weight matching at the end, from a start that the leading directions chose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from workbench.errors import WorkbenchError
from workbench.matching.matcher import Match, matcher
from workbench.matching.problem import MatchingProblem
from workbench.matching.truncation import Spectra
from workbench.matching.weights import WeightMatching
from workbench.progress import Progress


@matcher("spectral")
@dataclass(frozen=True)
class SpectralMatching:
    """Weight matching on the rank-k truncation of every layer: no data. Where a barrier is left it often lowers it; no promise.

    rank: k, the same for every layer (a layer with fewer singular values stays whole); 0: read off the spectrum, every layer keeps
    the directions whose squared singular values make up ``energy`` of its squared norm, in the model that needs fewer; energy: that
    share, in (0, 1]: trained layers put .3 to .5 of it into a few dozen directions, their initialisation spreads the rest evenly;
    least: fewer are never kept, since a handful of directions does not tell units apart;
    include_biases: whether one-axis tensors pull on the match; restarts, max_sweeps, tolerance, order, start: see weight matching.
    """

    rank: int = 0
    energy: float = 0.4
    least: int = 16
    include_biases: bool = False
    restarts: int = 0
    max_sweeps: int = 100
    tolerance: float = 1e-9
    order: Literal["random", "given"] = "random"
    start: Literal["identity", "anchored"] = "identity"

    def __post_init__(self) -> None:
        if self.rank < 0 or self.least < 1 or not 0 < self.energy <= 1:
            raise WorkbenchError(
                f"rank={self.rank}, energy={self.energy}, least={self.least}", expected="rank ≥ 0, least ≥ 1 and energy in (0, 1]"
            )
        self._inner()

    def _inner(self) -> WeightMatching:
        return WeightMatching(
            max_sweeps=self.max_sweeps,
            tolerance=self.tolerance,
            order=self.order,
            include_biases=self.include_biases,
            restarts=self.restarts,
            start=self.start,
        )

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        pair = _Pair(problem)
        ranks = self.rank or pair.energy_ranks(self.energy, self.least)
        found = self._inner().match(pair.truncated(ranks), seed=seed, progress=progress)
        return pair.told(found, pair.words(ranks), {"objective of the truncated weights": found.objective})


@matcher("annealed")
@dataclass(frozen=True)
class AnnealedMatching:
    """Weight matching from coarse to fine: rank k₁, then k₁·growth, …, then the full weights, each from the answer before. No data.

    start_rank: k₁; growth: the factor from one rank to the next, above 1; last_rank: where to stop (0: the full weights);
    include_biases: whether one-axis tensors pull on the last stage's match; max_sweeps, tolerance, order: see weight matching.
    A start that is handed over takes the place of the first stage's.
    """

    start_rank: int = 16
    growth: float = 2.0
    last_rank: int = 0
    include_biases: bool = True
    max_sweeps: int = 100
    tolerance: float = 1e-9
    order: Literal["random", "given"] = "random"

    def __post_init__(self) -> None:
        if self.start_rank < 1 or self.last_rank < 0 or not self.growth > 1:
            raise WorkbenchError(
                f"start_rank={self.start_rank}, growth={self.growth}, last_rank={self.last_rank}",
                expected="start_rank ≥ 1, growth > 1, last_rank ≥ 0 (0: the full weights)",
            )
        self._inner(last=True)

    def _inner(self, *, last: bool) -> WeightMatching:
        biases = self.include_biases and last
        return WeightMatching(
            max_sweeps=self.max_sweeps, tolerance=self.tolerance, order=self.order, include_biases=biases
        )

    def ranks(self, largest: int) -> list[int]:
        """The ranks of the stages for layers of at most ``largest`` singular values; 0 stands for the full weights."""
        end = min(self.last_rank or largest, largest)
        out, rank = [], float(self.start_rank)
        while rank < end:
            out.append(int(rank))
            rank = max(rank * self.growth, int(rank) + 1)
        return [*out, 0 if end == largest else end]

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        pair = _Pair(problem)
        stages = self.ranks(pair.largest)
        found, history, sweeps, start = None, [], 0, problem.start
        for number, rank in enumerate(stages):
            stage = (pair.truncated(rank) if rank else problem).starting_at(start)
            found = self._inner(last=number + 1 == len(stages)).match(stage, seed=seed + number, progress=progress)
            history += [replace(step, sweep=step.sweep + sweeps) for step in found.history]
            sweeps, start = sweeps + found.sweeps, found.element
            if found.cancelled:
                break
        assert found is not None
        done = ", ".join("full" if rank == 0 else str(rank) for rank in stages[: number + 1])
        told = pair.told(found, f"ranks {done}", {})
        return replace(told, history=tuple(history), sweeps=sweeps)


class _Pair:
    """Both models of a problem and their spectra."""

    def __init__(self, problem: MatchingProblem) -> None:
        self.problem = problem
        self.spectra = [
            Spectra(problem.symmetry, state, problem.names, device=problem.device) for state in (problem.anchor, problem.moving)
        ]

    @property
    def largest(self) -> int:
        return self.spectra[0].largest

    def energy_ranks(self, share: float, least: int) -> dict[str, int]:
        first, second = (spectra.energy_ranks(share) for spectra in self.spectra)
        return {name: max(least, min(rank, second[name])) for name, rank in first.items()}

    def truncated(self, ranks: int | Mapping[str, int]) -> MatchingProblem:
        return self.problem.on(*(spectra.truncated(ranks) for spectra in self.spectra))

    def words(self, ranks: int | Mapping[str, int]) -> str:
        if isinstance(ranks, int):
            return f"rank {ranks} of every layer"
        full = {name: max(one.rank for one in found) for name, found in self.spectra[0].layers.items()}
        return "rank " + ", ".join(f"{min(rank, full[name])} of {full[name]} of {name}" for name, rank in ranks.items())

    def told(self, found: Match, words: str, criterion: Mapping[str, float]) -> Match:
        """The match with the objective of the full weights, as every matcher gives it."""
        return replace(
            found,
            objective=self.problem.objective(found.element),
            criterion=criterion,
            notes=(*found.notes, f"matched on {words}"),
        )
