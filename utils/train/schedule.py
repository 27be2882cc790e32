"""Curves of the learning rate; and when a training logs, saves and evaluates. Without MindSpore.

A curve is float64, one value per epoch or per update, whichever the caller counts in. `Schedule`
counts steps since the start of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from utils.settings import Run


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

    def due(self, before: int, now: int) -> Due:
        """What is due after a call of the train step that has run the steps `before` to `now`."""
        run = self.run
        is_last = now == self.last_step
        log = crosses(before, now, run.log_every) or is_last
        if not self.is_between_updates(now):
            return Due(log)
        since = before  # calls that ended inside of an update have saved nothing
        while not self.is_between_updates(since):
            since -= now - before
        ends_epoch = crosses(since, now, self.steps_per_epoch)
        epoch = now // self.steps_per_epoch
        save_epoch = ends_epoch and (epoch % run.save_every == 0 or is_last)
        evaluation_steps = run.eval_every * self.steps_per_epoch
        return Due(
            log=log,
            save=save_epoch or crosses(since, now, run.save_steps),
            save_epoch=save_epoch,
            evaluate=run.eval_every > 0 and (crosses(since, now, evaluation_steps) or is_last),
        )

    def is_between_updates(self, steps_done: int) -> bool:
        """Whether no micro-batch waits for the others of its update."""
        return steps_done % self.steps_per_epoch % self.accumulation_steps == 0


def crosses(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` steps lies after `before`, up to `now`; 0: never."""
    return every > 0 and now // every > before // every


def choose_sink_size(batches: int, most: int) -> int:
    """The largest number of steps per call, up to `most`, that divides `batches`."""
    return next(size for size in range(min(most, batches), 0, -1) if batches % size == 0)
