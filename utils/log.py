"""Logging: lines on stderr and in `run.log`, JSON lines in `log.jsonl`; the progress of a command.

Progress is a bar on a terminal, else a line every minute on stderr: a bar in a file is one line of
thousands of characters, and nothing at all is as if it hung.
"""

import errno
import json
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from tqdm import tqdm

from utils import files, messages
from utils.runtime import Runtime

log = logging.getLogger("zoo")
INTERVAL = 60.0  # seconds between two lines
LINE = "{desc}: {n_fmt} of {total_fmt}{unit}, {elapsed}, left {remaining}"


def start_log(rt: Runtime, folder: Optional[Path] = None) -> None:
    """Rank 0 logs to stderr and into `folder/run.log`; the other ranks log only warnings."""
    log.handlers.clear()
    log.propagate = False
    log.setLevel(logging.INFO if rt.is_main_process else logging.WARNING)
    handlers: list[logging.Handler] = [TqdmHandler()]
    if folder is not None and rt.is_main_process:
        with files.report_write_errors(folder):
            handlers.append(logging.FileHandler(Path(folder) / "run.log"))
    for handler in handlers:
        handler.setFormatter(EscapingFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log.addHandler(handler)


class EscapingFormatter(logging.Formatter):
    """Escapes control characters, which names of files may hold, and hides secrets of addresses."""

    def format(self, record: logging.LogRecord) -> str:
        text = messages.hide_all_secrets(super().format(record))
        return "\n".join(map(messages.escape_control, text.split("\n")))


class TqdmHandler(logging.Handler):
    """Writes lines to stderr above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except OSError as error:
            if error.errno != errno.EIO:  # the terminal was closed: the run saves
                raise


def log_values(folder: Path, values: dict) -> None:
    """Logs the values in one line, and appends them to `log.jsonl`."""
    log.info(format_values(values))
    with files.report_write_errors(folder), open(Path(folder) / "log.jsonl", "a") as file:
        file.write(json.dumps(values) + "\n")


def format_values(values: dict) -> str:
    """`epoch 1.5  step 30  loss 2.01 ...`; fractions as percent, seconds left as a time.

    Values of None are left out. An accuracy is followed by its interval, `top1_low` to `top1_high`.
    """
    words = []
    for name, value in values.items():
        if value is None or name.endswith(("_low", "_high")):
            continue
        if name == "seconds_left":
            words.append(f"left {value // 3600}:{value % 3600 // 60:02d}:{value % 60:02d}")
        elif name in ("top1", "top5", "map", "waiting"):
            words.append(f"{name} {value:.1%}")
            if f"{name}_low" in values:
                low = values[f"{name}_low"]
                words.append(f"({100 * low:.1f} to {values[f'{name}_high']:.1%})")
        elif isinstance(value, float):
            words.append(f"{name} {value:.4g}")
        else:
            words.append(f"{name} {value}")
    return "  ".join(words)


def print_result(values: dict, rt: Runtime) -> None:
    """The last line of stdout: one JSON object, from rank 0."""
    if rt.is_main_process:
        print(json.dumps(values), flush=True)


class Lines:
    """A file for a bar, each state of which becomes a line on stderr."""

    def write(self, text: str) -> None:
        if text.strip():
            messages.print_line(text)

    def flush(self) -> None:
        """print_line has done it."""


class Progress(tqdm):
    """Counts the done of `total` jobs; `unit` is their plural. `hidden`: prints nothing.

    The bar disappears at the end. `initial` jobs were done before. Without
    `prints_lines` there is a bar or nothing. Iterating yields `jobs`, which have a length without
    `total`; each counts as done when the next is asked for.
    """

    def __init__(
        self,
        jobs: Optional[Iterable],
        name: str,
        total: Optional[int] = None,
        unit: str = "videos",
        hidden: bool = False,
        initial: int = 0,
        prints_lines: bool = True,
    ) -> None:
        options: dict[str, Any] = {}
        if prints_lines and not sys.stderr.isatty():
            options = {"file": Lines(), "bar_format": LINE, "miniters": 1, "smoothing": 0}
            options |= {"mininterval": INTERVAL, "delay": INTERVAL}
        super().__init__(
            jobs,
            total=total,
            desc=name,
            unit=f" {unit}",
            leave=False,
            disable=True if hidden else None,  # None: tqdm looks whether stderr is a terminal
            initial=initial,
            **options,
        )
