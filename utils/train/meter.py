"""The values of a training: means and times between two log lines, and the line itself."""

import time
from collections.abc import Mapping
from typing import Any

# The values that a step returns. The last two are requests to stop, by a signal or because too many
# videos are unreadable: above 0 from the step on in which any rank has made them.
OUTPUTS = ("loss", "top1", "loss_scale", "overflows", "stop", "bad_data")
REQUESTS = OUTPUTS[-2:]
MUCH_WAITING = 0.1  # fraction of the time
MANY_STEPS = 200
REMEDY = (
    "try more train.epochs, published weights (docs/weights.md) with train.freeze=backbone "
    "(docs/fine_tuning.md), a larger data.crop, more videos"
)
NOTHING_LEARNED = (  # advice, with the loss of chance
    "the loss has stayed above %.3g, that of equal scores for all classes: train.lr may be too "
    f"high, labels wrong, or train.pretrained of another kind; if not, {REMEDY}"
)


class Window:
    """Sums over some steps, as between two log lines, and the time since their start."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.steps = 0
        self.waited = 0.0
        self.loss = 0.0
        self.top1 = 0.0

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.start, 1e-9)


class Meter:
    """Collects the values of steps; `clips` are those of all ranks in a step.

    Before `warmup` steps of the run it gives no advice about what is learned.
    """

    def __init__(self, clips: int, steps_per_epoch: int, last_step: int, warmup: int = 0):
        self.clips = clips
        self.steps_per_epoch = steps_per_epoch
        self.last_step = last_step
        self.warmup = warmup
        self.seconds = 0.0  # of all windows that have a log line
        self.values = dict.fromkeys(OUTPUTS, 0.0)  # of the newest step
        self.most_overflows = 0  # consecutive updates that were not finite
        self.line: dict[str, Any] = {}  # the newest log line
        self.lines = 0
        self.has_advised = False
        self.learned = False  # better than chance, or the advice was given
        self.span = Window()  # since the last mean over an epoch
        self.restart()

    def restart(self) -> None:
        """Begins a window: at the start, after a log line, after an evaluation."""
        self.window = Window()
        self.step_end = self.window.start

    def begin_step(self) -> None:
        """A call of the train step begins; the time since the last one was spent waiting."""
        self.window.waited += time.monotonic() - self.step_end

    def end_step(self) -> None:
        self.step_end = time.monotonic()

    def add(self, steps: int, values: dict[str, float]) -> None:
        """`values` of the last of `steps` steps stand for all of them."""
        self.values = values
        self.most_overflows = max(self.most_overflows, int(values["overflows"]))
        for window in (self.window, self.span):
            window.steps += steps
            window.loss += steps * values["loss"]
            window.top1 += steps * values["top1"]

    def close_window(self, steps_done: int, lr: float) -> dict[str, Any]:
        """The log line after so many steps of the run; a new window begins with it."""
        window = self.window
        seconds = window.seconds
        self.seconds += seconds
        self.lines += 1
        self.line = {
            "epoch": round(steps_done / self.steps_per_epoch, 3),
            "step": steps_done,
            "loss": round(window.loss / window.steps, 6),
            "top1": round(window.top1 / window.steps, 4),
            "lr": lr,
            "loss_scale": self.values["loss_scale"],
            "overflows": int(self.values["overflows"]),
            "clips_per_second": round(self.clips * window.steps / seconds, 2),
            "waiting": round(window.waited / seconds, 3),
            "seconds_left": round((self.last_step - steps_done) * seconds / window.steps),
        }
        self.restart()
        return self.line

    def describe_first_step(self, steps_done: int) -> dict[str, Any]:
        """For people only: on a CPU the first window may take many minutes."""
        seconds = self.window.seconds
        return {
            "loss": self.values["loss"],
            "clips_per_second": self.clips / seconds,
            "seconds_left": round((self.last_step - steps_done) * seconds),
        }

    def is_late(self, steps_done: int) -> bool:
        """After the warm-up and a quarter of the run, or an epoch of at least 200 steps."""
        late = self.warmup + min(self.last_step / 4, max(self.steps_per_epoch, MANY_STEPS))
        return steps_done >= min(late, self.last_step)

    def learns_nothing(self, steps_done: int, chance_loss: float) -> bool:
        """Whether no mean loss over an epoch was below `chance_loss`, late enough; true once.

        In a run of a few epochs a mean is over a quarter of the run.
        """
        if steps_done <= self.warmup:
            self.span = Window()
        if self.span.steps < min(self.steps_per_epoch, self.last_step / 4):
            return False
        self.learned = self.learned or self.span.loss / self.span.steps <= chance_loss
        self.span = Window()
        if self.learned or self.lines < 2 or not self.is_late(steps_done):
            return False
        self.learned = True
        return True

    def find_waiting(self) -> float:
        """The fraction of the newest line's time that steps waited for data, if it is much.

        Else 0, also if it was found before. The first window does not count: it fills the pipeline.
        """
        waiting = self.line["waiting"]
        if self.lines < 2 or self.has_advised or waiting <= MUCH_WAITING:
            return 0.0
        self.has_advised = True
        return waiting


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
