"""Checkpoints: written completely or not at all, loaded with a report of both sides."""

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

    Raises ValueError, and leaves what was there before, where the disk does not take it.
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
        except RuntimeError as error:  # MindSpore's own words for a full disk
            raise ValueError(
                f"{setting}: cannot write {path}: {format_error(error)[:200]}"
            ) from None
        finally:  # fails as well, where the disk has become read-only
            remove_leftovers(path.parent, path.name)  # MindSpore leaves one of its own, too


def is_state(parameter: Parameter) -> bool:
    """Whether a parameter of a network is saved; dropout factors follow from the position."""
    return parameter.name != FACTORS


def weights_of(net: nn.Cell) -> dict[str, Parameter]:
    return {p.name: p for p in net.get_parameters() if is_state(p)}


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint without the single numbers that `append_dict` writes.

    No network here has a weight without axes. Raises ValueError where the file is no checkpoint.
    """
    result = read(path)
    notes = [escape_control(name) for name, value in result.items() if not value.ndim]
    if notes:
        log.info("%s: left out what is no weight: %s", path, join_names(notes, 3))
    return {name: value for name, value in result.items() if value.ndim}


def load(net: nn.Cell, path: Path, new_head: bool = False, head: str = "") -> list[str]:
    """Loads every weight of `net` from `path`, strictly: nothing missing, nothing left over.

    With `new_head`, parameters whose names match the regular expression `head` keep their fresh
    values. Returns the names that stayed fresh. Raises ValueError otherwise, before anything of
    the network has changed.
    """
    result, wanted = read_weights(path), weights_of(net)
    fresh = [name for name in wanted if new_head and re.search(head, name)]
    if new_head:
        result = {name: value for name, value in result.items() if not re.search(head, name)}
    report = compare(result, {name: p for name, p in wanted.items() if name not in fresh})
    if report:
        advice = "; is it of another network, or of other settings under model?"
        has_other_head = any(re.search(head or "$^", name) and name in report for name in wanted)
        if not new_head and has_other_head:
            advice = "; model.num_classes must be its own, or in training train.new_head=true"
        if Path(path).name == RESUME:
            advice = "; a run goes on from this file: give an epoch_*.ckpt beside it"
        raise ValueError(f"{path} does not fit this network: {report}{advice}")
    for name, value in result.items():
        wanted[name].set_data(Tensor(value, wanted[name].dtype))
    return fresh


def compare(result: dict[str, np.ndarray], wanted: dict[str, Parameter]) -> str:
    """What differs in names, shapes and kinds of numbers, in one line; empty if nothing does."""
    both = [(name, result[name], wanted[name]) for name in wanted if name in result]
    shapes = [
        f"{name} is {list(array.shape)} instead of {list(p.shape)}"
        for name, array, p in both
        if array.shape != tuple(p.shape)
    ]
    kinds = [
        f"{name} is {array.dtype} instead of {str(p.dtype).lower()}"
        for name, array, p in both
        if np.issubdtype(array.dtype, np.floating) != p.is_floating_point()
    ]
    missing = [name for name in wanted if name not in result]
    extra = [name for name in result if name not in wanted]
    parts = [listing("missing", missing), listing("unknown", extra), listing("shape", shapes)]
    return "; ".join(part for part in [*parts, listing("type", kinds)] if part)


def listing(what: str, names: list[str]) -> str:
    """The first few, of which a stranger's file may have chosen the names."""
    return (
        f"{what} {join_names([escape_control(name)[:200] for name in names], 3)}" if names else ""
    )
