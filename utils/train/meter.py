"""The values of a training: means and times between two log lines, the line, what is wrong."""

import time
from collections.abc import Mapping
from typing import Any

# The values that a step returns. The last two are requests to stop, by a signal or because too many
# videos are unreadable: above 0 from the step on in which any rank has made them.
OUTPUTS = ("loss", "top1", "loss_scale", "overflows", "stop", "bad_data")
REQUESTS = OUTPUTS[-2:]
MUCH_WAITING = 0.1  # fraction of the time
REMEDY = (
    "try more train.epochs, published weights (docs/weights.md) with train.freeze=backbone "
    "(docs/fine_tuning.md), a larger data.crop, more videos"
)


class Meter:
    """Collects the values of steps; `clips` are those of all ranks in a step."""

    def __init__(self, clips: int, steps_per_epoch: int, last_step: int):
        self.clips = clips
        self.steps_per_epoch = steps_per_epoch
        self.last_step = last_step
        self.seconds = 0.0  # of all windows that have a log line
        self.values = dict.fromkeys(OUTPUTS, 0.0)  # of the newest step
        self.most_overflows = 0  # consecutive updates that were not finite
        self.line: dict[str, Any] = {}  # the newest log line
        self.restart()

    def restart(self) -> None:
        """Begins a window: at the start, after a log line, after an evaluation."""
        self.start = self.step_end = time.monotonic()
        self.steps = 0
        self.waited = self.loss = self.top1 = 0.0

    def begin_step(self) -> None:
        """A call of the train step begins; the time since the last one was spent waiting."""
        self.waited += time.monotonic() - self.step_end

    def end_step(self) -> None:
        self.step_end = time.monotonic()

    def add(self, steps: int, values: dict[str, float]) -> None:
        """`values` of the last of `steps` steps stand for all of them."""
        self.values = values
        self.most_overflows = max(self.most_overflows, int(values["overflows"]))
        self.steps += steps
        self.loss += steps * values["loss"]
        self.top1 += steps * values["top1"]

    def close_window(self, steps_done: int, lr: float) -> dict[str, Any]:
        """The log line after so many steps of the run; a new window begins with it."""
        seconds = max(time.monotonic() - self.start, 1e-9)
        self.seconds += seconds
        self.line = {
            "epoch": round(steps_done / self.steps_per_epoch, 3),
            "step": steps_done,
            "loss": round(self.loss / self.steps, 6),
            "top1": round(self.top1 / self.steps, 4),
            "lr": lr,
            "loss_scale": self.values["loss_scale"],
            "overflows": int(self.values["overflows"]),
            "clips_per_second": round(self.clips * self.steps / seconds, 2),
            "waiting": round(self.waited / seconds, 3),
            "seconds_left": round((self.last_step - steps_done) * seconds / self.steps),
        }
        self.restart()
        return self.line

    def describe_first_step(self, steps_done: int) -> dict[str, Any]:
        """For people only: on a CPU the first window may take many minutes."""
        seconds = max(time.monotonic() - self.start, 1e-9)
        return {
            "loss": self.values["loss"],
            "clips_per_second": self.clips / seconds,
            "seconds_left": round((self.last_step - steps_done) * seconds),
        }


def describe_fault(line: Mapping[str, Any], chance: float, reads_files: bool = True) -> str:
    """What is wrong with a run by a late line of its log, of steps or of a validation; else empty.

    `chance` is the accuracy of equal scores for all classes.
    """
    if "videos" in line:
        return describe_chance("validation", line, chance)
    if reads_files and line["waiting"] > MUCH_WAITING:
        return (
            f"steps wait {100 * line['waiting']:.0f} % of the time for data: raise data.workers if "
            "cores are idle, or re-encode the videos with scripts/data/reencode_videos.py"
        )
    return ""


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
