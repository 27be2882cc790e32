"""Writes checkpoints atomically, and loads them; every name, shape and type must match."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Optional, Union

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from utils.files import make_drafts, report_write_errors, set_default_mode
from utils.log import log
from utils.messages import escape_control, format_error, join_names
from utils.nn.dropout import FACTORS
from utils.nn.layers import SYMMETRIC, PaddedNetwork, resize_table
from utils.weights.checkpoint_file import (
    DESCRIPTION,
    PADDING,
    SAMPLER,
    CheckpointFile,
    read_checkpoint,
)
from utils.weights.description import Description
from utils.weights.parameter_names import ParameterNames


class Weights(dict[str, Parameter]):
    """{name: parameter}, and how the network pads; empty if its code alone decides that."""

    def __init__(self, parameters: Mapping[str, Parameter], padding: str = ""):
        super().__init__(parameters)
        self.padding = padding


def save(
    path: Path,
    parameters: dict[str, Parameter],
    setting: str = "run.out",
    description: Optional[Description] = None,
) -> None:
    """Writes a MindSpore checkpoint atomically: at no time is there a half-written `path`.

    The file has the `description`, and says how the network pads if `parameters` are Weights of one
    that does not pad as in PyTorch. If it cannot be written it raises ValueError, which names
    `setting`, and leaves the old file.
    """
    entries = [{"name": name, "data": parameter} for name, parameter in parameters.items()]
    for name, text in list_texts(parameters, description).items():
        entries.append({"name": name, "data": Tensor(np.frombuffer(text.encode(), np.uint8))})
    logger = ms.log._get_logger()
    with report_write_errors(path, setting), make_drafts(path.parent) as drafts:
        temporary = drafts / "weights.ckpt"
        try:
            logger.disabled = True  # it would print the error too
            ms.save_checkpoint(entries, str(temporary), crc_check=True)
            set_default_mode(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except RuntimeError as error:  # MindSpore's error for a full disk
            raise ValueError(
                f"{setting}: cannot write {path}: {format_error(error)[:200]}"
            ) from None
        finally:
            logger.disabled = False


def list_texts(
    parameters: dict[str, Parameter], description: Optional[Description]
) -> dict[str, str]:
    """What a file of weights says by name: how the network pads, and its description."""
    texts = {}
    if isinstance(parameters, Weights) and parameters.padding not in ("", SYMMETRIC):
        texts[PADDING] = parameters.padding
    if description is not None:
        texts[DESCRIPTION] = description.to_text()
    return texts


def weights_of(net: nn.Cell) -> Weights:
    """{name: parameter} of all weights and statistics; dropout factors follow from the position."""
    parameters = {p.name: p for p in net.get_parameters() if p.name != FACTORS}
    # At amp levels above O0 the network is inside another Cell.
    padded = (cell for _, cell in net.cells_and_names() if isinstance(cell, PaddedNetwork))
    return Weights(parameters, next((cell.padding for cell in padded), ""))


def load(
    net: nn.Cell,
    path: Union[Path, CheckpointFile],
    new_head: bool = False,
    head: str = "",
    naming: Optional[ParameterNames] = None,
) -> list[str]:
    """Loads every weight of `net` from `path`; none may be missing, and the file has no others.

    The resume file of a run is accepted: of its arrays only the weights are loaded. Numbers that
    MindSpore's `append_dict` adds are left out (`is_state`). With `new_head`, parameters whose
    names match the regular expression `head` keep their initial values. Returns the names of these.
    With `naming`, arrays of another shape are fitted as in a conversion, with a line in the log.
    Raises ValueError if the file does not fit, or has numbers that are not finite,
    before any weight has changed.
    """
    from utils.weights.mindspore_checkpoint import check_padding, find_padding, is_state

    weights = weights_of(net)
    content = path if isinstance(path, CheckpointFile) else read_checkpoint(path)
    content.warn_without_checksum()
    path = content.path
    arrays = {name: v for name, v in content.arrays.items() if not is_state(name, v)}
    if SAMPLER in arrays:
        log.info("%s: using the weights that the run saved last", path)
        arrays = {name: value for name, value in arrays.items() if name in weights}
    elif len(arrays) < len(content.arrays):
        notes = [escape_control(name) for name in content.arrays if name not in arrays]
        log.info("%s: left out what is not a weight: %s", path, join_names(notes, 3))
    initial_names = [name for name in weights if new_head and re.search(head, name)]
    if new_head:
        arrays = {name: value for name, value in arrays.items() if not re.search(head, name)}
    if naming is not None:
        fit_arrays(arrays, weights, naming, path)
    report = report_differences(
        arrays, {n: p for n, p in weights.items() if n not in initial_names}
    )
    if report:
        advice = "; is it of another network, or of other settings under model?"
        has_other_head = any(re.search(head or "$^", name) and name in report for name in weights)
        if not new_head and has_other_head:
            advice = "; model.num_classes must be its own, or in training train.new_head=true"
            if not any(re.search(head, name) for name in arrays):
                advice = (
                    "; it has no classifier: train.new_head=true, in Python num_classes, adds one"
                )
        shapes = {n: (arrays[n].shape, tuple(p.shape)) for n, p in weights.items() if n in arrays}
        advice = advise_positions({n: s for n, s in shapes.items() if s[0] != s[1]}) or advice
        raise ValueError(f"{path} does not fit this network: {report}{advice}")
    if weights.padding:
        check_padding(path, find_padding(path, arrays, content.texts), weights.padding)
    damaged = list_damaged(arrays)
    if damaged:
        raise ValueError(
            f"{path} has weights that are NaN or infinite, {join_names(damaged, 3)}: its training "
            "has diverged; use an earlier checkpoint"
        )
    for name, value in arrays.items():
        weights[name].set_data(Tensor(value, weights[name].dtype))
    for name in initial_names:
        weights[name].init_data()
    return initial_names


def fit_arrays(
    arrays: dict[str, np.ndarray],
    weights: Mapping[str, Parameter],
    naming: ParameterNames,
    path: Path,
) -> None:
    """Replaces arrays of another shape than the weights by fitted ones; logs which."""
    changed = []
    for name, weight in weights.items():
        shape = tuple(weight.shape)
        if name not in arrays or arrays[name].shape == shape:
            continue
        fitted = fit_array(naming.canonical_name(name), arrays[name], shape, naming)
        if fitted.shape == shape:
            changed.append(f"{name} {[*arrays[name].shape]} to {[*shape]}")
            arrays[name] = fitted
    if changed:
        log.info("%s: resized as in a conversion: %s", path, join_names(changed, 2))


def fit_array(key: str, array: np.ndarray, shape: tuple, naming: ParameterNames) -> np.ndarray:
    """The array as float32 of `shape`; unchanged if the network has no rule for its shape."""
    rule = naming.fit_shape(key, array.shape, shape) if array.shape != shape else None
    if rule == "mean_channels":
        array = np.repeat(array.mean(axis=1, keepdims=True), shape[1], axis=1)
    elif rule == "diagonal":  # one kernel per channel, in a dense kernel that is 0 elsewhere
        dense = np.zeros(shape, array.dtype)
        dense[np.arange(len(array)), np.arange(len(array))] = array[:, 0]
        array = dense
    elif rule == "resize_rows":
        array = resize_table(array, shape[0])
    elif rule == "reshape":
        array = array.reshape(shape)
    with np.errstate(over="ignore"):  # `convert` refuses what becomes infinite
        return array.astype(np.float32) if array.shape == shape else array


def advise_positions(differing: Mapping[str, tuple[tuple, tuple]]) -> str:
    """What to do if only MViT's positions differ, as those of other clips do; else empty.

    `differing` has {name: (shape in the file, shape in the network)}.
    """
    for name, (its, ours) in differing.items():
        leaf = name.rpartition(".")[2]
        if len(its) != len(ours) or its[-1:] != ours[-1:] or "pos_" not in leaf:
            return ""
    for name, (its, _) in differing.items():
        leaf = name.rpartition(".")[2]
        if leaf.startswith("pos_embed"):  # (1, frames / 2, C), or (1, (crop / 4)^2, C)
            is_time = leaf == "pos_embed_temporal"
            own = f"frames={2 * its[1]}" if is_time else f"crop={4 * math.isqrt(its[1])}"
            return f"; give --data.{own}: absolute positions cannot be resized"
        own = f"--data.frames={its[0] + 1}" if leaf == "rel_pos_t" else "its own --data.crop"
        return (
            f"; give {own}, or let train.pretrained or scripts/convert_checkpoint.py resize its "
            "relative positions"
        )
    return ""


def list_damaged(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """The names of arrays with numbers that are NaN or infinite."""
    return [name for name, value in arrays.items() if not np.isfinite(value).all()]


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
