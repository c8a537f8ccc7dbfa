"""What is being done, in words: one sentence for every progress report."""

from __future__ import annotations

from workbench.progress import Step

DOING = {
    "": "starting",
    "reading": "reading the checkpoints",
    "reading model": "reading the model",
    "export": "reading off the computation graph",
    "symmetry": "discovering the symmetry",
    "discovering symmetry": "discovering the symmetry",
    "profile naive": "measuring the naive curve",
    "profile aligned": "measuring the aligned curve",
    "singular vectors": "comparing singular vectors",
}


def doing(stage: str) -> str:
    """ "measuring the naive curve"; a stage nobody named is its own name."""
    return DOING.get(stage, stage)


def sentence(stage: str, step: Step) -> str:
    """One progress report of ``stage``, with its figures."""
    if step.stage == "proving by test":
        return f"Proving by test: run {step.done}"
    words = doing(stage)
    words = words[:1].upper() + words[1:]
    if step.total:
        words += f": {step.done} of {step.total}"
    values = step.values
    for name, unit in (("sweep", "sweep"), ("iteration", "step")):
        if name in values and "objective" in values:
            words += f": {unit} {values[name]:.0f}, objective {values['objective']:.4f}"
    return words
