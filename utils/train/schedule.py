"""The course of a training, without MindSpore: learning rates, what is due after a step, advice.

A curve of the learning rate is float64, one value per epoch or per update, whichever the caller
counts in. `Schedule` counts steps since the start of the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from utils.settings import Run

REMEDY = (
    "try more train.epochs, published weights (docs/weights.md) with train.freeze=backbone "
    "(docs/fine_tuning.md), a larger data.crop, more videos"
)


def steps(count: int, milestones: Sequence[float], factor: float = 0.1) -> np.ndarray:
    """`factor` to the power of the milestones reached, for i = 0 .. count - 1."""
    reached = (np.arange(count)[:, None] >= np.asarray(milestones, int)[None, :]).sum(axis=1)
    return np.power(float(factor), reached)


def cosine(count: int) -> np.ndarray:
    """(1 + cos(pi i / count)) / 2 for i = 0 .. count - 1."""
    return 0.5 * (1 + np.cos(np.pi * np.arange(count) / max(count, 1)))


def warmup(count: int, start: float, peak: float) -> np.ndarray:
    """Linear; the first value is one step above `start`, the last is `peak`."""
    return start + (peak - start) * (np.arange(count) + 1) / max(count, 1)


def peak_lr(lr: float, base_batch: int, effective_batch: int) -> float:
    """Linear scaling: `lr` belongs to `base_batch` samples per update; 0 means do not scale."""
    return lr * effective_batch / base_batch if base_batch else lr


@dataclass(frozen=True)
class Due:
    """What a run does after a step. `save` writes the resume file, `save_epoch` also weights."""

    log: bool = False
    save: bool = False
    save_epoch: bool = False
    evaluate: bool = False


@dataclass(frozen=True)
class Schedule:
    """The settings of `run` for a number of epochs; all ranks decide alike.

    `accumulation_steps` steps, and the remaining ones at the end of an epoch, make an update. A run
    saves and evaluates only between updates, so later than asked if that is inside of one.
    """

    run: Run
    epochs: int
    steps_per_epoch: int
    accumulation_steps: int = 1

    @property
    def last_step(self) -> int:
        return self.epochs * self.steps_per_epoch

    def due(self, step: int) -> Due:
        """What is due after so many steps."""
        run = self.run
        is_last = step == self.last_step
        log = step % run.log_every == 0 or is_last
        if not self.is_between_updates(step):
            return Due(log)
        # Steps inside of an update have saved nothing.
        since = step - 1 - (step - 1) % self.steps_per_epoch % self.accumulation_steps
        epoch, rest = divmod(step, self.steps_per_epoch)
        save_epoch = rest == 0 and (epoch % run.save_every == 0 or is_last)
        save_step = run.save_steps > 0 and step // run.save_steps > since // run.save_steps
        is_validated = rest == 0 and run.eval_every > 0
        evaluate = is_validated and (epoch % run.eval_every == 0 or is_last)
        return Due(log, save_epoch or save_step, save_epoch, evaluate)

    def is_between_updates(self, steps_done: int) -> bool:
        """Whether no micro-batch waits for the others of its update."""
        return steps_done % self.steps_per_epoch % self.accumulation_steps == 0


def describe_chance(name: str, metrics: Mapping[str, Any], chance: float) -> str:
    """Advice if an accuracy, less its error, is not above `chance`; else empty.

    Also if all samples get the label of a frequent class: then the mean over the classes is that of
    chance. `metrics` are those of `evaluate`; of several data sets or labels nothing is said.
    """
    (metrics, *others) = metrics.get("sets", {name: metrics}).values()
    if others or not chance or not metrics["videos"]:
        return ""
    top1 = metrics["top1"]
    low = metrics.get("top1_low", top1)
    if min(low, metrics["mean_class_accuracy"]) > round(chance, 6):
        return ""
    accuracy = describe_accuracy(name, metrics)
    return f"{accuracy} is not clearly above chance, {chance:.1%}: {REMEDY}"


def describe_accuracy(name: str, metrics: Mapping[str, Any]) -> str:
    """The accuracy with its interval, if that is known."""
    error = ""
    if "top1_low" in metrics:
        error = f" ({metrics['top1_low']:.1%} to {metrics['top1_high']:.1%})"
    return f"{name} top-1 {metrics['top1']:.1%}{error}"
