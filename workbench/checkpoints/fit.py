"""Does a checkpoint belong to a model? Names and shapes are compared, and nothing is loaded half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from workbench.checkpoints.checkpoint import Checkpoint
from workbench.errors import WorkbenchError


@dataclass(frozen=True)
class Fit:
    """matched: model name -> checkpoint name, shapes equal; missing: in the model only; unexpected: in the checkpoint only;
    mismatched: name -> (shape in the checkpoint, shape in the model); notes: what was renamed, copied or left out.

    Integer buffers (``num_batches_tracked``, ``position_ids``) never count as missing or unexpected.
    """

    matched: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        parts = [f"{len(self.matched)} matched"]
        for label, names in (("missing", self.missing), ("unexpected", self.unexpected)):
            parts.append(f"{len(names)} {label}{_listed(names)}")
        shapes = [f"{name} {a} in the file, {b} in the model" for name, (a, b) in self.mismatched.items()]
        parts.append(f"{len(shapes)} of another shape{_listed(shapes)}")
        return ", ".join(parts)


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return f" ({', '.join(names[:4])}{' …' if len(names) > 4 else ''})" if names else ""


def match_names(state: Mapping[str, Tensor], model: nn.Module) -> Fit:
    """Compare ``state`` with ``model.state_dict()``; a common root that only one side has ("model.", "bert.") is bridged."""
    wanted = model.state_dict()
    fits = [_fit(state, wanted, "", "")]
    if not fits[0].complete:
        fits += [_fit(state, wanted, root, "") for root in _roots(state)]
        fits += [_fit(state, wanted, "", root) for root in _roots(wanted)]
    return max(fits, key=lambda fit: (len(fit.matched), -len(fit.unexpected)))


def _roots(names: Mapping[str, Tensor]) -> list[str]:
    """Every leading path that all names share: "a.", "a.b.", …"""
    first = next(iter(names), "").split(".")
    roots = [".".join(first[: depth + 1]) + "." for depth in range(len(first) - 1)]
    return [root for root in roots if all(name.startswith(root) for name in names)]


def _fit(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], off: str, on: str) -> Fit:
    names = {on + name[len(off) :]: name for name in state}
    matched, mismatched = {}, {}
    for name, tensor in wanted.items():
        if name in names:
            found = state[names[name]]
            if found.shape == tensor.shape:
                matched[name] = names[name]
            else:
                mismatched[name] = (tuple(found.shape), tuple(tensor.shape))
    missing = [name for name in wanted if name not in names]
    unexpected = [old for new, old in names.items() if new not in wanted]
    copied = [name for name in missing if not wanted[name].is_floating_point()]
    dropped = [name for name in unexpected if not state[name].is_floating_point()]
    notes = [f"{off!r} taken off the names"] * bool(off) + [f"{on!r} put before the names"] * bool(on)
    notes += [f"integer buffers taken from the model:{_listed(copied)}"] * bool(copied)
    notes += [f"integer buffers left out:{_listed(dropped)}"] * bool(dropped)
    return Fit(
        matched,
        tuple(name for name in missing if name not in copied),
        tuple(name for name in unexpected if name not in dropped),
        mismatched,
        tuple(notes),
    )


def fit_to_model(checkpoint: Checkpoint | Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The checkpoint's tensors under the model's names, in the model's order; the model is not changed.

    Raises ``WorkbenchError`` with the counts of matched, missing and unexpected tensors unless every float tensor of both found
    its partner.
    """
    state = checkpoint.state if isinstance(checkpoint, Checkpoint) else checkpoint
    source = checkpoint.source if isinstance(checkpoint, Checkpoint) and checkpoint.source else "The checkpoint"
    fit = match_names(state, model)
    if not any(state[name].is_floating_point() for name in fit.matched.values()):
        raise WorkbenchError(
            f"{source} does not fit the model: no tensor found its place ({fit})",
            expected=f"names and shapes such as {_listed(tuple(model.state_dict())).strip(' ()')}",
            cause="another architecture, another width, or weights saved under other names",
            next_step="name the right model, or pass key=... to load_checkpoint",
        )
    if not fit.complete:
        raise WorkbenchError(
            f"{source} fits the model only in part: {fit}",
            expected="every tensor to find its place",
            cause="another width or another head, or an architecture that differs in a few layers",
            next_step="build the model with the sizes of the checkpoint",
        )
    wanted = model.state_dict()
    return {name: state[fit.matched[name]] if name in fit.matched else tensor.detach().clone() for name, tensor in wanted.items()}
