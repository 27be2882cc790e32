"""Checks of exported files, MINDIR and ONNX: checksum, network, number of classes, batch."""

from pathlib import Path
from typing import Any

import numpy as np

from utils.log import log
from utils.messages import escape_control, format_error
from utils.weights.model_checksum import check_checksum


def warn_without_checksum(path: Path) -> None:
    """Raises ValueError if the checksum of a file differs; a file without one costs a warning."""
    if path.is_file() and not check_checksum(path):
        log.warning("%s has no checksum, so damage to its numbers would not be noticed", path)


def check_contents(path: Path, cfg: Any, info: dict[str, str], classes: int, batch: int) -> None:
    """Raises ValueError if a file does not fit the yaml.

    `info` is the file's metadata. `classes` is the last size of its output, used if the metadata do
    not name it. `batch` is 0 if the file takes any number of clips.
    """
    network, exported = type(cfg).__module__.partition(".")[0], info.get("network")
    if exported and exported != network:
        name = escape_control(exported)[:80]
        raise ValueError(f"{path} holds a network of {name}, not of {network}")
    expected = str(np.sum(cfg.model_arguments()["num_classes"]))
    in_file = info.get("classes", str(classes))
    if in_file != expected:
        in_file = escape_control(in_file)[:20]
        raise ValueError(f"{path} has {in_file} classes, and the yaml has {expected}")
    if batch > 0 and batch != cfg.eval.batch:
        raise ValueError(
            f"{path} takes {batch} clips at once and eval.batch is {cfg.eval.batch}: "
            f"set --eval.batch={batch} or export with --batch free"
        )


def shorten_error(error: Exception) -> str:
    """The first 120 characters of a library's error about an untrusted file, printable."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return escape_control(kind + format_error(error))[:120]
