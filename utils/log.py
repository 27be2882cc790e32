"""The words of a run: lines on stderr and in `run.log`, JSON lines in `log.jsonl`."""

import json
import logging
import sys
from pathlib import Path
from typing import Optional

from tqdm import tqdm

from utils import files
from utils.runtime import Runtime

log = logging.getLogger("zoo")


def start_log(rt: Runtime, folder: Optional[Path] = None) -> None:
    """Rank 0 speaks to stderr and into `folder/run.log`; the others keep to warnings."""
    log.handlers.clear()
    log.propagate = False
    log.setLevel(logging.INFO if rt.is_main_process else logging.WARNING)
    handlers = [TqdmHandler()]
    if folder is not None and rt.is_main_process:
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
    hidden = None if rt.is_main_process else True  # None: tqdm looks whether stderr is a terminal
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
