"""Writes checkpoints atomically, and loads them; every name, shape and type must match."""

import os
import re
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from utils.files import report_write_errors
from utils.log import log
from utils.messages import escape_control, format_error, join_names
from utils.nn.dropout import FACTORS
from utils.weights.checkpoint_file import RESUME, read


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Deletes the temporary files of a write that did not end."""
    for file in folder.glob(f"{name}.tmp*"):
        file.unlink()


def save(path: Path, parameters: dict[str, Parameter], setting: str = "run.out") -> None:
    """Writes a MindSpore checkpoint atomically: at no time is there a half-written `path`.

    If it cannot be written it raises ValueError, which names `setting`, and leaves the old file.
    """
    temporary = path.with_name(path.name + ".tmp.ckpt")
    entries = [{"name": name, "data": parameter} for name, parameter in parameters.items()]
    with report_write_errors(path, setting):
        try:
            ms.save_checkpoint(entries, str(temporary), crc_check=True)
            os.chmod(temporary, 0o644)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except RuntimeError as error:  # MindSpore's error for a full disk
            raise ValueError(
                f"{setting}: cannot write {path}: {format_error(error)[:200]}"
            ) from None
        finally:  # fails too if the disk has become read-only
            remove_leftovers(path.parent, path.name)  # MindSpore leaves a temporary file, too


def weights_of(net: nn.Cell) -> dict[str, Parameter]:
    """{name: parameter} of all weights and statistics; dropout factors follow from the position."""
    return {p.name: p for p in net.get_parameters() if p.name != FACTORS}


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint without the numbers that MindSpore's `append_dict` adds.

    No network here has a weight without axes. Raises ValueError if the file is no checkpoint.
    """
    arrays = read(path)
    notes = [escape_control(name) for name, value in arrays.items() if not value.ndim]
    if notes:
        log.info("%s: left out what is no weight: %s", path, join_names(notes, 3))
    return {name: value for name, value in arrays.items() if value.ndim}


def load(net: nn.Cell, path: Path, new_head: bool = False, head: str = "") -> list[str]:
    """Loads every weight of `net` from `path`; none may be missing, and the file has no others.

    With `new_head`, parameters whose names match the regular expression `head` keep their fresh
    values. Returns the names that stayed fresh. Raises ValueError if the file does not fit, or has
    numbers that are not finite, before any weight has changed.
    """
    arrays, weights = read_weights(path), weights_of(net)
    fresh = [name for name in weights if new_head and re.search(head, name)]
    if new_head:
        arrays = {name: value for name, value in arrays.items() if not re.search(head, name)}
    report = report_differences(arrays, {n: p for n, p in weights.items() if n not in fresh})
    if report:
        advice = "; is it of another network, or of other settings under model?"
        has_other_head = any(re.search(head or "$^", name) and name in report for name in weights)
        if not new_head and has_other_head:
            advice = "; model.num_classes must be its own, or in training train.new_head=true"
        if Path(path).name == RESUME:
            advice = "; a run goes on from this file: give an epoch_*.ckpt beside it"
        raise ValueError(f"{path} does not fit this network: {report}{advice}")
    damaged = [name for name, value in arrays.items() if not np.isfinite(value).all()]
    if damaged:
        raise ValueError(
            f"{path} has weights that are NaN or infinite, {join_names(damaged, 3)}: its training "
            "has diverged; use an earlier checkpoint"
        )
    for name, value in arrays.items():
        weights[name].set_data(Tensor(value, weights[name].dtype))
    return fresh


def report_differences(arrays: dict[str, np.ndarray], weights: dict[str, Parameter]) -> str:
    """One line of all differences in names, shapes and types; empty if there are none."""
    pairs = [(name, arrays[name], weights[name]) for name in weights if name in arrays]
    return join_reports(
        missing=[name for name in weights if name not in arrays],
        unknown=[name for name in arrays if name not in weights],
        shape=[
            f"{name} is {list(array.shape)} instead of {list(weight.shape)}"
            for name, array, weight in pairs
            if array.shape != tuple(weight.shape)
        ],
        type=[
            f"{name} is {array.dtype} instead of {str(weight.dtype).lower()}"
            for name, array, weight in pairs
            if np.issubdtype(array.dtype, np.floating) != weight.is_floating_point()
        ],
    )


def join_reports(**names_by_kind: list[str]) -> str:
    """The first names of every kind that has some, as in "missing a, b; shape c is ...".

    A hostile file may have chosen the names.
    """
    return "; ".join(
        f"{kind} {join_names([escape_control(name)[:200] for name in names], 3)}"
        for kind, names in names_by_kind.items()
        if names
    )
