"""``train``: seeds in, checkpoints out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from workbench.architectures import Architecture, OutsideModel, resolve_model
from workbench.checkpoints import Checkpoint
from workbench.devices import resolve_device
from workbench.errors import WorkbenchError
from workbench.progress import Progress, Reporter
from workbench.tasks import Task
from workbench.tasks import task as named_task
from workbench.training.augment import augment
from workbench.training.recipe import Recipe, default_recipe
from workbench.training.trainers import BatchedTrainer, LoopTrainer, Trainer, slower_batched, why_not_batched

REPORT_SECONDS = 0.1
EVALUATION_BATCH = 1000


def train(
    architecture: Architecture | OutsideModel | str,
    task: Task | str,
    *,
    seeds: Iterable[int] = (0, 1),
    epochs: int | None = None,
    batch_size: int | None = None,
    optimizer: str | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    momentum: float | None = None,
    schedule: str | None = None,
    warmup_epochs: int | None = None,
    augment: str | None = None,
    save_epochs: Iterable[int] = (),
    device: str | torch.device = "auto",
    progress: Progress | None = None,
    batched: bool | str = "auto",
) -> list[Checkpoint]:
    """Train one network per seed on the split "train" and give their checkpoints, in the order of ``seeds``.

    θ_{t+1} = optimizer(θ_t, ∇ (1/B) Σ_b loss(f(x_b; θ_t), y_b)). Initial weights, data order and augmentation of a seed come from
    generators of its own, so a seed gives the same weights alone, in company, and in another thread.

    Recipe: what is None comes from ``default_recipe``; see ``Recipe`` for the meaning of each. save_epochs: epochs after which a
    checkpoint is kept as well (0: before training); a seed's checkpoints then come one after the other, the last epoch always
    among them. batched: "auto" stacks all seeds in one run (``torch.func.vmap``) and trains them one by one where a layer does not
    allow it or it is slower (convolutions on a CPU), which the notes say; True insists, False never stacks. Small networks run
    fastest with ``torch.set_num_threads(1)``.

    Metadata of each checkpoint: architecture, task, seed, epoch, recipe, and loss and metrics on every split.
    Raises ``WorkbenchError`` where network and task do not fit, ``Cancelled`` where ``progress`` asks for it.
    """
    architecture = resolve_model(architecture) if isinstance(architecture, str) else architecture
    task = named_task(task) if isinstance(task, str) else task
    recipe = default_recipe(architecture.name, task.name).override(
        epochs=epochs,
        batch_size=batch_size,
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        momentum=momentum,
        schedule=schedule,
        warmup_epochs=warmup_epochs,
        augment=augment,
    )
    seeds = _checked_seeds(seeds)
    saved = _checked_epochs(save_epochs, recipe.epochs)
    place = resolve_device(device)
    task.split("train")
    models = [architecture.build(seed).train().to(place) for seed in seeds]
    _require_fit(architecture, models[0], task)
    resident = task.to(place)
    trainer, notes = _trainer(models, resident, recipe, batched)

    found: dict[tuple[int, int], Checkpoint] = {}
    for epoch in _epochs(trainer, seeds, resident, recipe, progress):
        if epoch in saved:
            for index, seed in enumerate(seeds):
                state = trainer.state(index)
                facts = {"seed": str(seed), "epoch": str(epoch), "recipe": recipe.to_json(), "task": task.name}
                facts |= (
                    {"architecture": architecture.to_json()}
                    if isinstance(architecture, Architecture)
                    else {"model": str(architecture)}
                )
                measured, broken = _measure(models[index], state, resident)
                found[seed, epoch] = Checkpoint(
                    state,
                    f"train({architecture}, {task.name}, seed {seed}, epoch {epoch})",
                    (*notes, *task.notes, *broken),
                    facts | measured,
                )
    return [found[seed, epoch] for seed in seeds for epoch in saved]


def stream(seed: int, purpose: str) -> torch.Generator:
    """A generator of its own for each pair of seed and purpose."""
    digest = hashlib.sha256(f"{purpose} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _epochs(trainer: Trainer, seeds: list[int], task: Task, recipe: Recipe, progress: Progress | None) -> Iterator[int]:
    """Run the recipe, giving 0 before the first step and then each epoch's number after its last step."""
    x, y = task.split("train")
    orders = [stream(seed, "order") for seed in seeds]
    changes = [stream(seed, "augmentation") for seed in seeds]
    steps = -(-len(x) // recipe.batch_size)
    reporter = Reporter(progress, "training", total=recipe.epochs * steps)
    pending, reported = 0, time.perf_counter()
    yield 0
    for epoch in range(1, recipe.epochs + 1):
        order = torch.stack([torch.randperm(len(x), generator=generator) for generator in orders]).to(x.device)
        for step in range(steps):
            chosen = order[:, step * recipe.batch_size : (step + 1) * recipe.batch_size]
            inputs = x[chosen]
            if recipe.augment != "none":
                inputs = torch.stack([augment(recipe.augment, own, g) for own, g in zip(inputs, changes, strict=True)])
            rate = recipe.learning_rate((epoch - 1) * steps + step, steps)
            losses = trainer.step(inputs, y[chosen], rate)
            pending += 1
            now = time.perf_counter()
            # Tiny networks take a step in a millisecond: a report for each would cost more than the step.
            if step == steps - 1 or now - reported > REPORT_SECONDS:
                reporter.step(advance=pending, epoch=epoch, **{"train loss": float(losses.mean())})
                pending, reported = 0, now
        yield epoch


def _trainer(models: list[nn.Module], task: Task, recipe: Recipe, batched: bool | str) -> tuple[Trainer, tuple[str, ...]]:
    if batched not in (True, False, "auto"):
        raise WorkbenchError(f"batched is {batched!r}", expected="True, False or 'auto'")
    if batched is False:
        return LoopTrainer(models, task, recipe), ("seeds trained one by one, as asked",)
    if batched == "auto" and (slower := slower_batched(models[0], task.device)):
        return LoopTrainer(models, task, recipe), (f"seeds trained one by one: {why_not_batched(models[0]) or slower}",)
    reason = why_not_batched(models[0])
    if reason is None:
        # A trial step on throw-away copies finds layers that vmap cannot take.
        try:
            x, y = (part[:2].expand(len(models), *part[:2].shape) for part in task.split("train"))
            BatchedTrainer(models, task, recipe).step(x, y, 0.0)
            return BatchedTrainer(models, task, recipe), ()
        except (RuntimeError, NotImplementedError) as error:
            reason = f"torch.func.vmap refuses it ({str(error).splitlines()[0][:120]})"
    if batched is True:
        raise WorkbenchError(f"Seeds of this network cannot be trained in one batch: {reason}", next_step="pass batched='auto'")
    return LoopTrainer(models, task, recipe), (f"seeds trained one by one: {reason}",)


@torch.no_grad()
def _measure(model: nn.Module, state: dict[str, Tensor], task: Task) -> tuple[dict[str, str], tuple[str, ...]]:
    """Loss and metrics on every split in eval mode, as text, and a note where they are not finite."""
    was_training = model.training
    model.eval()
    values: dict[str, float] = {}
    placed = {name: tensor.to(task.device) for name, tensor in state.items()}
    for split in task.splits:
        sums: dict[str, float] = {}
        for x, y in task.batches(split, EVALUATION_BATCH):
            outputs = functional_call(model, placed, (x,), tie_weights=False)
            for name, each in task.judge(outputs, y).items():
                sums[name] = sums.get(name, 0.0) + float(each.double().sum())
        values |= {f"{split}_{name}": total / task.size(split) for name, total in sums.items()}
    model.train(was_training)
    broken = [name for name, value in values.items() if value != value or abs(value) == float("inf")]
    notes = (f"training diverged: {', '.join(broken)} not finite",) if broken else ()
    return {name: f"{value:.6f}" for name, value in values.items()}, notes


def _require_fit(architecture: Any, model: nn.Module, task: Task) -> None:
    """One forward pass on two examples: shapes, classes, and no layer that draws from the global generator."""
    random = [name for name, m in model.named_modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
    if random:
        raise WorkbenchError(
            f"{architecture} drops units at random ({', '.join(random[:3])})",
            expected="a network whose training is decided by its seed",
            cause="dropout draws from torch's global generator, so a seed would not give the same weights twice",
            next_step="build it with dropout 0",
        )
    x, y = (part[:2] for part in task.split("train"))
    try:
        with torch.no_grad():
            state = {name: tensor.clone() for name, tensor in model.state_dict().items()}  # batch statistics move in place
            outputs = functional_call(model, state, (x.to(next(model.parameters()).device),), tie_weights=False)
            losses = task.example_losses(outputs, y.to(outputs.device))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise WorkbenchError(
            f"{architecture} cannot be trained on {task.name!r}, whose inputs are {tuple(x.shape[1:])} {x.dtype} and targets "
            f"{tuple(y.shape[1:])} {y.dtype} ({str(error).splitlines()[0]})",
            cause="other sizes, or images where rows are expected",
            next_step="change the architecture's options, or the task's (digits and mnist take flatten=...)",
        ) from error
    if losses.shape != (len(x),):
        raise WorkbenchError(f"The loss gives shape {tuple(losses.shape)} for {len(x)} examples", expected="one loss per example")
    if task.loss == "cross_entropy" and (task.classes or 0) > outputs.shape[-1]:
        raise WorkbenchError(
            f"{architecture} has {outputs.shape[-1]} outputs and {task.name!r} has {task.classes} classes",
            expected="as many outputs as classes",
            next_step=f"build it with outputs={task.classes}",
        )


def _checked_seeds(seeds: Iterable[int]) -> list[int]:
    found = [int(seed) for seed in ([seeds] if isinstance(seeds, int) else seeds)]
    if not found or len(set(found)) < len(found) or min(found) < 0:
        raise WorkbenchError(f"The seeds are {found}", expected="one or more different numbers from 0 on")
    return found


def _checked_epochs(save_epochs: Iterable[int], last: int) -> list[int]:
    found = sorted({int(epoch) for epoch in save_epochs} | {last})
    if found[0] < 0 or found[-1] > last:
        raise WorkbenchError(f"Checkpoints were asked for after epochs {found}", expected=f"epochs from 0 to {last}")
    return found
