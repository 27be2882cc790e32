"""The words of a run: lines on stderr and in `run.log`, JSON lines in `log.jsonl`."""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any, Optional

from tqdm import tqdm

from utils import files
from utils.data.sampler import Order
from utils.runtime import Runtime
from utils.train import lr_schedules

log = logging.getLogger("zoo")

DEVICE_COUNTS = (1, 8, 32, 48, 96, 128, 192, 384, 768, 1536)  # in the table of rates


def start_log(rt: Runtime, folder: Optional[Path] = None) -> None:
    """Rank 0 speaks to stderr and into `folder/run.log`; the others keep to warnings."""
    log.handlers.clear()
    log.propagate = False
    log.setLevel(logging.INFO if rt.is_first else logging.WARNING)
    handlers = [TqdmHandler()]
    if folder is not None and rt.is_first:
        with files.explained(folder):
            handlers.append(FileHandler(Path(folder) / "run.log"))
    for handler in handlers:
        handler.setFormatter(EscapingFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log.addHandler(handler)


class EscapingFormatter(logging.Formatter):
    """Escapes control characters, which names of files may hold, in every line of a record."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(files.escape_control, super().format(record).split("\n")))


class TqdmHandler(logging.Handler):
    """Lines on stderr that do not tear a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


class FileHandler(logging.FileHandler):
    """Lines in a file until the disk takes no more; the other handler says so in one line."""

    def handleError(self, record: logging.LogRecord) -> None:
        log.removeHandler(self)
        log.warning("no more lines in %s: %s", self.baseFilename, sys.exc_info()[1])


def progress(total: int, unit: str, rt: Runtime, initial: int = 0) -> tqdm:
    """A bar on rank 0's terminal; nothing where stderr is none."""
    hidden = None if rt.is_first else True  # None: tqdm looks whether stderr is a terminal
    return tqdm(total=total, initial=initial, unit=unit, disable=hidden, leave=False)


def write_line(folder: Path, values: dict) -> None:
    """One line for people, the same as JSON for other tools."""
    log.info(sentence(values))
    with files.explained(folder), open(Path(folder) / "log.jsonl", "a") as file:
        file.write(json.dumps(values) + "\n")


def sentence(values: dict) -> str:
    """`epoch 1.5  step 30  loss 2.01 ...`; shares as percent, seconds left as a time."""
    words = []
    for name, value in values.items():
        if name == "seconds_left":
            words.append(f"left {value // 3600}:{value % 3600 // 60:02d}:{value % 60:02d}")
        elif name in ("top1", "top5", "computing", "communication", "waiting"):
            words.append(f"{name} {value:.1%}")
        elif isinstance(value, float):
            words.append(f"{name} {value:.4g}")
        else:
            words.append(f"{name} {value}")
    return "  ".join(words)


def announce(train: Any, order: Order, segments: list, done: int) -> None:
    """Says at the start what the run is made of: sizes, learning rate, AllReduce segments."""
    together = order.per_update(train.accumulate)
    log.info(
        "%d samples; %d steps an epoch; %d a device x %d devices x %d accumulated = %d an update",
        *(order.samples, order.steps_per_epoch, order.batch, order.size, train.accumulate),
        together,
    )
    if train.base_batch:
        peak = lr_schedules.peak_lr(train.lr, train.base_batch, together)
        log.info("lr %g for %d samples -> %g for %d", train.lr, train.base_batch, peak, together)
    else:
        log.info("lr %g as it is: train.base_batch is 0, so it does not scale", train.lr)
    log.info("%s", per_device_count(train, order))
    parts = [f"{tensors} tensors {size / 1e6:.2f} MB" for _, tensors, size in segments]
    log.info("gradients travel in %d segments: %s", len(parts), " | ".join(parts))
    if done:
        log.info("going on from step %d", done)


def per_device_count(train: Any, order: Order) -> str:
    """Samples an update and peak rate of the same yaml on other numbers of devices, in one line.

    `here` stands before the number in use; numbers that the data cannot feed are left out.
    """
    fed = [n for n in DEVICE_COUNTS if order.batch * n <= order.samples]
    parts = []
    for n in sorted({order.size, *fed}):
        together = order.batch * n * train.accumulate
        peak = lr_schedules.peak_lr(train.lr, train.base_batch, together)
        parts.append(f"{'here ' if n == order.size else ''}{n}: {together}, lr {peak:g}")
    return f"devices: samples an update, peak lr | {' | '.join(parts)}"


class Window:
    """Sums between two log lines."""

    def __init__(self):
        self.began = self.since = time.monotonic()
        self.steps = self.waited = 0
        self.loss = self.top1 = 0.0

    def add(self, steps: int, loss: float, top1: float) -> None:
        """`loss` and `top1` of the last of `steps` steps stand for all of them."""
        self.steps += steps
        self.loss += steps * loss
        self.top1 += steps * top1

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.began, 1e-9)
