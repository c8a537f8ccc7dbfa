"""The symmetry group of a model: its factors, which tensor axes each moves, what is pinned and why, and the proof.

A ``Symmetry`` is data: discovered once (``discover_symmetry``), saved as JSON, and applied to any state dict of that model.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from workbench.disk import output_file, user_path, whole_file
from workbench.errors import WorkbenchError
from workbench.states import StateDict, require_state, storage_key
from workbench.symmetry import layout as layouts
from workbench.symmetry.element import Element
from workbench.symmetry.entries import (
    FIXED,
    MOVED,
    UNUSED,
    Group,
    Member,
    PinnedAxis,
    Stack,
    TensorEntry,
)
from workbench.symmetry.linear import LinearFactor
from workbench.symmetry.scaling import SCALE, SIGN, Scaling

if TYPE_CHECKING:
    from workbench.symmetry.permutation_spec import PermutationSpec
    from workbench.symmetry.proof import SymmetryCheck

@dataclass(frozen=True, eq=False)
class Symmetry:
    """The group of parameter changes that leave a model's function alone.

    groups: factor name -> Group; tensors: state-dict name -> TensorEntry; pinned: axes that stay, with reasons; aliases: tied
    name -> the name it shares memory with; unknown_ops: operations without a rule -> how often they occurred (each pinned
    every axis it touched); outputs: the outputs that matter, None for all; proof: the verdict of the
    numeric test, or None where it was not run; stacks: tensors that are moved together (see ``Stack``); their entries in
    ``tensors`` describe the axes inside one branch; scalings: scales and signs that were asked for, by name; linear:
    factors on which changes of basis act, told along with the scales.
    """

    groups: Mapping[str, Group]
    tensors: Mapping[str, TensorEntry]
    pinned: tuple[PinnedAxis, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    unknown_ops: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    outputs: tuple[str, ...] | None = None
    proof: SymmetryCheck | None = None
    stacks: tuple[Stack, ...] = ()
    scalings: Mapping[str, Scaling] = field(default_factory=dict)
    linear: tuple[LinearFactor, ...] = ()

    def pieces(self) -> tuple[Stack, ...]:
        """What is cut into blocks: every moved or fixed tensor once (no tied names), those of exchangeable branches stacked."""
        stacked = {name for stack in self.stacks for name in stack.names}
        alone = [
            Stack((name,), entry.layouts, entry.orders)
            for name, entry in self.tensors.items()
            if name not in stacked and name not in self.aliases and entry.role in (MOVED, FIXED)
        ]
        return (*alone, *self.stacks)

    def log10_order(self) -> float:
        """log10 of the number of permutations in the group: Σ_f copies_f · log10(n_f!)."""
        return sum(group.log10_order for group in self.groups.values())

    @property
    def scale_dimension(self) -> int:
        """How many positive numbers may be chosen."""
        return sum(math.prod(scaling.shape) for scaling in self.scalings.values() if scaling.kind == SCALE)

    @property
    def sign_bits(self) -> int:
        """How many signs may be chosen. Two choices may come to the same element (all units of all heads, all heads)."""
        return sum(math.prod(scaling.shape) for scaling in self.scalings.values() if scaling.kind == SIGN)

    @cached_property
    def coverage(self) -> float:
        """Share of the model's float parameters and buffers (by count) moved by some factor; unused and tied names not counted."""
        counted = {n: e for n, e in self.tensors.items() if e.role in (MOVED, FIXED) and n not in self.aliases}
        total = sum(math.prod(entry.shape) for entry in counted.values())
        moved = sum(math.prod(entry.shape) for entry in counted.values() if entry.role == MOVED)
        return moved / total if total else 0.0

    # -- elements

    def _over(self) -> dict[str, tuple[str, ...]]:
        return {name: group.over for name, group in self.groups.items() if group.over}

    def identity(self) -> Element:
        """The element that moves nothing."""
        units = {n: torch.arange(g.size).expand(*g.over_sizes, g.size).clone() for n, g in self.groups.items()}
        return Element(units, self._over(), {n: s.identity() for n, s in self.scalings.items()}, self.scalings)

    def sample(self, seed: int) -> Element:
        """A uniformly random element; ``seed`` feeds a generator of its own."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {}
        for name, group in self.groups.items():
            rows = [torch.randperm(group.size, generator=generator) for _ in range(group.copies)]
            drawn[name] = torch.stack(rows).reshape(*group.over_sizes, group.size)
        return Element(drawn, self._over(), {n: s.sample(generator) for n, s in self.scalings.items()}, self.scalings)

    def element(self, permutations: Mapping[str, Any], scales: Mapping[str, Any] | None = None) -> Element:
        """An element from arrays for some factors and some scalings, the identity elsewhere."""
        given = {n: torch.as_tensor(p, dtype=torch.int64) for n, p in permutations.items()}
        unknown = set(given) - set(self.groups)
        if unknown:
            raise WorkbenchError(f"No factor is called {sorted(unknown)[0]!r}", expected=f"some of {', '.join(self.groups)}")
        numbers = {n: torch.as_tensor(s, dtype=torch.float64) for n, s in (scales or {}).items()}
        if numbers.keys() - self.scalings.keys():
            wrong = sorted(numbers.keys() - self.scalings.keys())[0]
            raise WorkbenchError(f"No scaling is called {wrong!r}", expected=f"some of {', '.join(self.scalings) or 'none'}")
        identity = self.identity()
        return Element({**identity.permutations, **given}, self._over(), {**identity.scales, **numbers}, self.scalings)

    def apply(self, element: Element, state: StateDict) -> dict[str, Tensor]:
        """The state dict moved by ``element``: (P w)[i] = w[perm[i]] along every axis a factor moves.

        Returns new tensors of the same dtype, device and order; ``state`` is not touched; integer buffers and tensors no
        factor moves are copied; tied tensors are moved once and stay tied. Raises where names or shapes do not fit.
        """
        self.require_fits(state)
        done: dict[tuple, Tensor] = {}
        scaled = {name for scaling in self.scalings.values() for name in scaling.tensors}
        for piece in self.pieces():
            if self.tensors[piece.names[0]].role == MOVED or piece.names[0] in scaled:
                moved = element.apply_to_tensor(piece.gather(state), piece.layouts, piece.names[0])
                done |= {storage_key(state[name]): part.contiguous() for name, part in piece.scatter(moved).items()}
        out: dict[str, Tensor] = {}
        for name, tensor in state.items():
            key = storage_key(tensor)
            if key not in done:
                # A tied name whose tensor the given state holds apart moves like the one it was tied to.
                entry = self.tensors[name]
                alone = Stack((name,), entry.layouts, entry.orders)
                if name in self.aliases and entry.role == MOVED:
                    moved = element.apply_to_tensor(alone.gather(state), entry.layouts, self.aliases[name])
                    done[key] = alone.scatter(moved)[name]
                else:
                    done[key] = tensor.detach().clone()
            out[name] = done[key]
        return out

    def require_fits(self, state: StateDict) -> None:
        """Raise unless ``state`` holds exactly the tensors known here (moved, fixed on purpose, constant), with the same shapes."""
        require_state(state, "given")
        unknown = [name for name in state if name not in self.tensors]
        missing = [name for name in self.tensors if name not in state]
        shapes = [
            f"{name} {tuple(state[name].shape)} instead of {entry.shape}"
            for name, entry in self.tensors.items()
            if name in state and tuple(state[name].shape) != entry.shape
        ]
        if unknown or missing or shapes:
            found = "; ".join(
                f"{label}: {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
                for label, names in (("unknown", unknown), ("missing", missing), ("other shape", shapes))
                if names
            )
            raise WorkbenchError(
                f"The state dict does not fit the model whose symmetry this is ({found})",
                expected=f"its {len(self.tensors)} tensors by name and shape",
                cause="the checkpoint belongs to another architecture, or its names carry a prefix",
                next_step="discover the symmetry of the right model, or load the file with load_checkpoint, which mends prefixes",
            )

    # -- proof and words

    def check(self, model: nn.Module, example_inputs: Any, *, samples: int = 3, seed: int = 0) -> SymmetryCheck:
        """Prove by test that the group keeps the function: see ``workbench.symmetry.proof.check``."""
        from workbench.symmetry.proof import check

        return check(self, model, example_inputs, samples=samples, seed=seed)

    def explain(self, name: str | None = None) -> str:
        """In words: per group who is tied to whom and why, and per pinned axis what pinned it. ``name``: one group or tensor."""
        from workbench.symmetry.explanation import explain

        return explain(self, name)

    def to_permutation_spec(self) -> PermutationSpec:
        """The field's plain special case; raises where an axis is not one whole factor."""
        from workbench.symmetry.permutation_spec import PermutationSpec

        return PermutationSpec.from_symmetry(self)

    # -- storage

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as JSON, in one piece."""
        target = output_file(path)
        with whole_file(target) as partial:
            partial.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")
        return target

    def to_json(self) -> dict[str, Any]:
        from dataclasses import asdict

        return {
            "format": "workbench symmetry 1",
            "groups": {
                n: {"size": g.size, "kind": g.kind, "over": g.over, "over_sizes": g.over_sizes, "ties": g.ties}
                for n, g in self.groups.items()
            },
            "tensors": {
                n: {"shape": e.shape, "role": e.role, "buffer": e.buffer, "layouts": [layouts.to_json(item) for item in e.layouts]}
                | ({"orders": e.orders} if e.orders else {})
                for n, e in self.tensors.items()
            },
            "stacks": [{"names": s.names, "layouts": [layouts.to_json(item) for item in s.layouts]} for s in self.stacks],
            "scalings": {name: scaling.to_json() for name, scaling in self.scalings.items()},
            "linear": [factor.to_json() for factor in self.linear],
            "pinned": [[p.tensor, p.axis, p.reason] for p in self.pinned],
            "aliases": dict(self.aliases),
            "unknown_ops": dict(self.unknown_ops),
            "notes": self.notes,
            "outputs": self.outputs,
            "proof": None if self.proof is None else asdict(self.proof),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Symmetry:
        """Read what ``save`` wrote. Raises WorkbenchError for any other file."""
        try:
            data = json.loads(user_path(path).read_text(encoding="utf-8"))
            known = data.get("format") == "workbench symmetry 1"
        except (OSError, ValueError, AttributeError) as error:
            raise WorkbenchError(
                f"{path} could not be read as a symmetry ({error})", expected="a file written by Symmetry.save"
            ) from None
        if not known:
            raise WorkbenchError(f"{path} is JSON but not a saved symmetry", expected="a file written by Symmetry.save")
        try:
            return cls.from_json(data)
        except (KeyError, TypeError, ValueError) as error:
            raise WorkbenchError(
                f"{path} is a saved symmetry with a part missing or damaged ({type(error).__name__}: {error})",
                next_step="discover it again and save it anew",
            ) from None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Symmetry:
        from workbench.symmetry.proof import SymmetryCheck

        tensors = {
            n: TensorEntry(
                tuple(e["shape"]),
                tuple(layouts.from_json(item) for item in e["layouts"]),
                e["role"],
                e["buffer"],
                tuple(order and tuple(order) for order in e.get("orders", ())),
            )
            for n, e in data["tensors"].items()
        }
        proof = data["proof"] and SymmetryCheck.from_json(data["proof"])
        built = build(
            tensors,
            {n: {k: g[k] for k in ("size", "kind", "over", "over_sizes", "ties")} for n, g in data["groups"].items()},
            aliases=data["aliases"],
            stacks=tuple(
                Stack(tuple(s["names"]), tuple(layouts.from_json(item) for item in s["layouts"])) for s in data.get("stacks", ())
            ),
        )
        return replace(
            built,
            pinned=tuple(PinnedAxis(*item) for item in data["pinned"]),
            unknown_ops=data["unknown_ops"],
            notes=tuple(data["notes"]),
            outputs=data["outputs"] and tuple(data["outputs"]),
            linear=tuple(LinearFactor.from_json(item) for item in data.get("linear", ())),
            scalings={name: Scaling.from_json(name, item) for name, item in data.get("scalings", {}).items()},
            proof=proof or None,
        )


def build(
    tensors: Mapping[str, TensorEntry],
    factors: Mapping[str, Mapping[str, Any]],
    *,
    aliases: Mapping[str, str] | None = None,
    stacks: tuple[Stack, ...] = (),
) -> Symmetry:
    """A Symmetry from the layouts of its tensors; the members of every group are read off the layouts.

    factors: name -> size, and optionally kind, over, over_sizes, ties.
    """
    aliases = dict(aliases or {})
    members: dict[str, list[Member]] = {name: [] for name in factors}
    for tensor, entry in tensors.items():
        if tensor in aliases or entry.role == UNUSED:
            continue
        for axis, axis_layout in enumerate(entry.layouts):
            for name in dict.fromkeys(layouts.factors(axis_layout)):
                if name in members:
                    members[name].append(Member(tensor, axis, axis_layout))
    for stack in stacks:
        for name in dict.fromkeys(layouts.factors(stack.layouts[0])):
            members[name] += [Member(tensor, None, stack.layouts[0]) for tensor in stack.names]
    groups = {
        name: Group(
            name,
            spec["size"],
            spec.get("kind", "permutation"),
            tuple(members[name]),
            tuple(spec.get("over", ())),
            tuple(spec.get("over_sizes", ())),
            tuple(spec.get("ties", ())),
        )
        for name, spec in factors.items()
    }
    return Symmetry(groups, tensors, aliases=aliases, stacks=stacks)
