"""Logging: lines on stderr and in `run.log`, JSON lines in `log.jsonl`."""

import errno
import json
import logging
import sys
from pathlib import Path
from typing import Optional

from tqdm import tqdm

from utils import files, messages
from utils.runtime import Runtime

log = logging.getLogger("zoo")


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
        text = messages.hide_all_secrets(messages.name_commands(super().format(record)))
        return "\n".join(map(messages.escape_control, text.split("\n")))


class TqdmHandler(logging.Handler):
    """Writes lines to stderr above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except OSError as error:
            if error.errno != errno.EIO:  # that of a terminal which was closed: the run saves
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
