"""Activation matching: units that do the same on the same examples (arXiv 2209.04836, section 3.1; Li et al., arXiv 1511.07543).

    π_p = argmax_P Σ_i C[i, P(i)] ,      C[i, j] = E[a_i b_j]  or their correlation, over examples and positions

Every factor is an assignment of its own: no sweeps, and no weight is looked at. The values that carry a factor are read off the
model's graph, so heads, channels, experts and residual streams need no table: C of a factor with one arrangement per unit of
another is C[β, σ, i, j] of that pair of axes, and the two are assigned together (``wreath.assign_nested``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.errors import Cancelled, WorkbenchError
from workbench.matching import wreath
from workbench.matching.assignment import Assigner, assign
from workbench.matching.data import MatchingData, require_data
from workbench.matching.matcher import Match, matcher
from workbench.matching.moments import CrossMoments
from workbench.matching.problem import CostMatrices, MatchingProblem
from workbench.matching.signed import resigned, solve
from workbench.progress import Progress, Reporter
from workbench.states import StateDict
from workbench.symmetry.activations import Activation, Reader, activations
from workbench.symmetry.capture import capture
from workbench.symmetry.element import Element
from workbench.symmetry.layout import blocks

# Rounds of coordinate descent over the factors that no activation carries.
ROUNDS = 10


@matcher("activations", reference="arXiv:2209.04836")
@dataclass(frozen=True)
class ActivationMatching:
    """Activation matching: one assignment per factor by correlation on examples; one forward pass of each model, no gradients.

    cost: "correlation", "uncentred" (E[a b]) or "covariance"; read: "last", the last value that carries the factor at its most
    positions (after the nonlinearity; a residual stream after its last block), or "all", every value that a next layer reads;
    batch_size: examples at a time; examples: how many at most (0: all).
    """

    cost: Literal["correlation", "uncentred", "covariance"] = "correlation"
    read: Literal["last", "all"] = "last"
    batch_size: int = 500
    examples: int = 0

    needs = "inputs"

    def __post_init__(self) -> None:
        if self.cost not in ("correlation", "uncentred", "covariance") or self.read not in ("last", "all"):
            raise WorkbenchError(
                f"cost={self.cost!r}, read={self.read!r}", expected="cost correlation, uncentred or covariance; read last or all"
            )
        if self.batch_size < 1 or self.examples < 0:
            raise WorkbenchError(
                f"batch_size={self.batch_size}, examples={self.examples}", expected="batch_size ≥ 1, examples ≥ 0 (0: all)"
            )

    def match(self, problem: MatchingProblem, *, seed: int = 0, progress: Progress | None = None) -> Match:
        data = require_data(problem.data, "Activation matching")
        count = min(self.examples or data.size, data.size)
        if count < 2:
            raise WorkbenchError(
                f"Activation matching was given {count} example",
                expected="two or more, since units are compared by how they vary over examples",
            )
        stream = _Stream(problem, self, data, count)
        reporter = Reporter(progress, "reading activations", total=count)
        try:
            stream.run(reporter)
            cancelled = False
        except Cancelled:
            cancelled = True
        if not stream.done:
            start = problem.start if problem.start is not None else problem.symmetry.identity()
            return Match(start, problem.objective(start), converged=False, cancelled=True, data_used=data.words(0))
        return stream.matched(cancelled)


@dataclass(frozen=True)
class _Site:
    """Where a factor is read: a value of the graph, which of its blocks, and the block's axes for outer and own units."""

    factor: str
    node: str
    layouts: tuple[Any, ...]
    number: int
    outer: int | None
    own: int

    def units(self, values: Mapping[str, Tensor]) -> Tensor:
        """(samples, units): outer units slowest; a sample is one example at one position."""
        view = list(blocks(values[self.node], self.layouts))[self.number].view
        axes = [axis for axis in (self.outer, self.own) if axis is not None]
        last = view.movedim(axes, list(range(-len(axes), 0)))
        return last.reshape(-1, last.shape[-len(axes) :].numel())


class _Stream:
    """The cross moments of every site, batch by batch."""

    def __init__(self, problem: MatchingProblem, settings: ActivationMatching, data: MatchingData, count: int) -> None:
        self.problem, self.settings, self.data, self.count = problem, settings, data, count
        self.states = [_placed(state, problem.device) for state in (problem.anchor, problem.moving)]
        self.moments: dict[tuple[str, int], CrossMoments] = {}
        self.readers: dict[int, tuple[Reader, list[_Site]]] = {}
        self.sites: list[_Site] = []
        self.done = 0

    def run(self, reporter: Reporter) -> None:
        size = batch_size(self.count, self.settings.batch_size)
        for batch in self.data.batches(size):
            here = min(size, self.count - self.done)
            if here < size:
                batch = _first(batch, here, self.data.size)
            reader, sites = self._reader(batch, here)
            first, second = (reader(state, _moved_to(batch, self.problem.device)) for state in self.states)
            for number, site in enumerate(sites):
                moments = self.moments.setdefault((site.factor, number), CrossMoments())
                moments.add(site.units(first), site.units(second))
            self.done += here
            reporter.step(advance=here, examples=self.done)
            if self.done >= self.count:
                break

    def _reader(self, batch: Any, size: int) -> tuple[Reader, list[_Site]]:
        """A graph is exported for one shape: one for the full batches, one for the rest."""
        if size not in self.readers:
            model = self.data.model
            own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
            captured = capture(model, _moved_to(batch, None, own))
            sites = choose_sites(self.problem, activations(self.problem.symmetry, captured), self.settings.read)
            if self.sites and [site.factor for site in sites] != [site.factor for site in self.sites]:
                raise WorkbenchError(
                    "The model's graph is another one for a batch of another size",
                    next_step=f"pass examples={self.done}, a multiple of the batch size",
                )
            self.sites = sites
            self.readers[size] = Reader(captured, {site.node for site in sites}, self.problem.device), sites
        return self.readers[size]

    # -- from moments to an element

    def score(self, number: int) -> Tensor:
        """C of one site, dead units last."""
        moments = self.moments[self.sites[number].factor, number]
        costs = {"correlation": moments.correlation, "uncentred": moments.uncentred, "covariance": moments.covariance}
        score = costs[self.settings.cost]().cpu()
        first, second = (dead.cpu() for dead in moments.dead())
        # A dead unit says nothing: it goes to a dead one as long as there are any.
        lonely = first[:, None] ^ second[None, :]
        both = first[:, None] & second[None, :]
        low = float(score.min()) - float(score.abs().max()) - 1.0
        return torch.where(lonely, low, torch.where(both, 0.0, score))

    def matched(self, cancelled: bool) -> Match:
        problem, groups = self.problem, self.problem.symmetry.groups
        element = problem.symmetry.identity()
        scores: dict[str, Tensor] = {}
        for number, site in enumerate(self.sites):
            score = self.score(number)
            scores[site.factor] = scores[site.factor] + score if site.factor in scores else score
        if any(problem.sign_names.values()):
            scores = {name: score.abs() if problem.sign_names[name] else score for name, score in scores.items()}
        assigner, permutations = Assigner(), dict(element.permutations)
        for name, group in groups.items():
            inside = [f for f in problem.dependents[name] if f in scores]
            if group.over:
                continue
            if problem.dependents[name] and wreath.can_move(problem, name):
                tables: dict[str | None, Tensor] = {f: _table(scores[f], group.size) for f in inside}
                if name in scores:
                    tables[None] = scores[name]
                if tables:
                    places, arranged = wreath.assign_nested(problem, name, element, tables)
                    permutations |= {name: places, **arranged}
            elif name in scores and not problem.dependents[name]:
                permutations[name], _ = assign(scores[name], permutations[name], assigner=assigner)
        for name, group in groups.items():
            if name in scores and group.over and not wreath.can_move(problem, group.over[0]):
                table = _table(scores[name], group.copies)
                permutations[name] = torch.stack(
                    [assign(table[copy, copy], permutations[name][copy])[0] for copy in range(group.copies)]
                )
        element = replace(element, permutations=permutations)
        unread = [n for n, places in problem.occurrences.items() if places and n not in scores and not self._outer_of(n, scores)]
        element = filled(problem, element, unread)
        return Match(
            element,
            problem.objective(element),
            sweeps=0,
            converged=not cancelled,
            cancelled=cancelled,
            data_used=self.data.words(self.done),
            notes=(*self._notes(unread), *([assigner.words] if assigner.solved.keys() - {"scipy"} else [])),
            criterion=self._criterion(element),
        )

    def _outer_of(self, name: str, scores: Mapping[str, Tensor]) -> bool:
        """Whether an outer factor was placed by what is inside it."""
        return any(inner in scores for inner in self.problem.dependents[name]) and wreath.can_move(self.problem, name)

    def _notes(self, unread: list[str]) -> list[str]:
        where = dict.fromkeys(f"{site.factor} at {site.node}" for site in self.sites)
        notes = [f"read: {', '.join(list(where)[:8])}{' …' if len(where) > 8 else ''}"]
        if unread:
            notes.append(f"no activation carries {', '.join(unread)}: matched by weights, the others held")
        for number, site in enumerate(self.sites):
            first, second = (int(dead.sum()) for dead in self.moments[site.factor, number].dead())
            if first or second:
                notes.append(f"{site.factor}: {first} units of the anchor and {second} of the moving model are dead, matched last")
        return notes

    def _criterion(self, element: Element) -> dict[str, float]:
        """The mean correlation of matched units, and of units at the same place, over the anchor's live units at all sites."""
        after, before, units = 0.0, 0.0, 0
        for number, site in enumerate(self.sites):
            moments = self.moments[site.factor, number]
            correlation = moments.correlation().cpu()
            if self.problem.sign_names.get(site.factor):
                correlation = correlation.abs()
            source = _sources(self.problem, element, site.factor, len(correlation))
            after += float(correlation.gather(1, source[:, None]).sum())
            before += float(correlation.diagonal().sum())
            units += int((~moments.dead()[0]).sum())
        return {"mean correlation of matched units": after / units, "before matching": before / units} if units else {}


def choose_sites(problem: MatchingProblem, found: list[Activation], read: str) -> list[_Site]:
    """For every factor the places where it is read. Raises where no value carries any factor."""
    chosen: list[_Site] = []
    for name, group in problem.symmetry.groups.items():
        best: list[tuple[int, _Site]] = []
        for activation in found:
            if name not in activation.factors or (read == "all" and name not in activation.read):
                continue
            best += [(positions, site) for positions, site in _sites(activation, name, group.over, problem)]
        if not best:
            continue
        if read == "all":
            chosen += [site for _, site in best]
        else:
            most = max(positions for positions, _ in best)
            chosen.append([site for positions, site in best if positions == most][-1])
    if not chosen:
        raise WorkbenchError(
            "No value inside the model carries a factor of the symmetry",
            expected="a symmetry discovered from this model",
            cause="the symmetry belongs to another model, or was written by hand under other names",
            next_step="discover_symmetry(model, inputs), or a matcher that needs no data",
        )
    return chosen


def _sites(activation: Activation, name: str, over: tuple[str, ...], problem: MatchingProblem) -> list[tuple[int, _Site]]:
    """The blocks of a value in which the factor labels one axis, with the number of samples each gives for one unit."""
    out = []
    template = torch.empty([layout.size for layout in activation.layouts], device="meta")
    for number, block in enumerate(blocks(template, activation.layouts)):
        if block.labels.count(name) != 1 or len(over) > 1 or any(block.labels.count(outer) != 1 for outer in over):
            continue
        own = block.labels.index(name)
        outer = block.labels.index(over[0]) if over else None
        others = [d for d, label in enumerate(block.labels) if label in problem.symmetry.groups and d not in (own, outer)]
        if others:
            continue  # units of another factor, whose order is not known yet, would count as samples
        positions = block.view.numel() // block.view.shape[own] // (block.view.shape[outer] if outer is not None else 1)
        out.append((positions, _Site(name, activation.node, activation.layouts, number, outer, own)))
    return out


def filled(problem: MatchingProblem, element: Element, names: list[str]) -> Element:
    """``element`` with the factors ``names`` arranged by weights, and all signs chosen by weights, the others held."""
    signed = [name for name, signs in problem.sign_names.items() if signs]
    for _ in range(ROUNDS if names or signed else 0):
        before = element
        for name in names:
            if problem.dependents[name]:
                if wreath.can_move(problem, name):
                    candidate = wreath.propose(problem, name, element).element
                    element = candidate if problem.objective(candidate) > problem.objective(element) else element
            elif name not in problem.quadratic:
                element, _ = solve(problem, CostMatrices(problem), name, element)
        for name in signed:
            element = resigned(problem, CostMatrices(problem), name, element)
        if element == before:
            break
    return element


def batch_size(count: int, wanted: int) -> int:
    """At most ``wanted``: the largest size of at least half of that which divides ``count``, so that no batch is smaller."""
    wanted = min(wanted, count)
    return next((size for size in range(wanted, (wanted + 1) // 2 - 1, -1) if count % size == 0), wanted)


def _table(score: Tensor, copies: int) -> Tensor:
    """(H n, H n) -> (H, H, n, n): destination and source copy, destination and source unit."""
    n = len(score) // copies
    return score.reshape(copies, n, copies, n).transpose(1, 2)


def _sources(problem: MatchingProblem, element: Element, name: str, size: int) -> Tensor:
    units = element.permutations[name]
    if units.dim() == 1:
        return units
    outer = element.permutations.get(problem.symmetry.groups[name].over[0], torch.arange(len(units)))
    return (outer[:, None] * units.shape[-1] + units).reshape(size)


def _placed(state: StateDict, device: torch.device) -> dict[str, Tensor]:
    half = (torch.float16, torch.bfloat16)
    return {n: t.detach().to(device, torch.float32 if t.dtype in half else t.dtype) for n, t in state.items()}


def _moved_to(batch: Any, device: torch.device | None, dtype: torch.dtype | None = None) -> Any:
    """The tensors of a batch on another device, and the float ones in another precision; None: as they are."""
    if isinstance(batch, dict):
        return {name: _moved_to(part, device, dtype) for name, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_moved_to(part, device, dtype) for part in batch)
    if not isinstance(batch, Tensor):
        return batch
    return batch.to(device=device, dtype=dtype if batch.is_floating_point() else None)


def _first(batch: Any, count: int, size: int) -> Any:
    """The first ``count`` examples of a batch."""
    if isinstance(batch, dict):
        return {name: _first((part,), count, size)[0] for name, part in batch.items()}
    return tuple(part[:count] if isinstance(part, Tensor) and part.dim() and part.shape[0] > count else part for part in batch)
