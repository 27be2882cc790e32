"""When a training logs, saves and evaluates. It counts steps since the start of the run."""

from dataclasses import dataclass

from utils.settings import Run


@dataclass(frozen=True)
class Due:
    """What a run does after a step. `save` writes the resume file, `save_epoch` also weights."""

    log: bool = False
    save: bool = False
    save_epoch: bool = False
    evaluate: bool = False


class Schedule:
    """The settings of `run` for a number of epochs; all ranks decide alike.

    `accumulation_steps` steps, and the remaining ones at the end of an epoch, make an update. A run
    saves and evaluates only between updates, so later than asked if that is inside of one.
    """

    def __init__(self, run: Run, epochs: int, steps_per_epoch: int, accumulation_steps: int = 1):
        self.run = run
        self.steps_per_epoch = steps_per_epoch
        self.accumulation_steps = accumulation_steps
        self.last_step = epochs * steps_per_epoch

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
