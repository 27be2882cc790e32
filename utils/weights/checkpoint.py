"""Writes checkpoints atomically, and loads them; every name, shape and type must match."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Optional, Union

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from utils.files import make_drafts, report_write_errors, set_default_mode
from utils.log import log
from utils.messages import escape_control, find_nearest, format_error, join_names
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
    with report_write_errors(path, setting), make_drafts(path.parent) as drafts:
        temporary = drafts / "weights.ckpt"
        try:
            ms.save_checkpoint(entries, str(temporary), crc_check=True)
        except RuntimeError as error:  # MindSpore's error for a full disk
            reason = format_error(error)[:200]
            raise ValueError(f"{setting}: cannot write {path}: {reason}") from None
        set_default_mode(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)


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
    file = path if isinstance(path, CheckpointFile) else read_checkpoint(path)
    arrays = {name: v for name, v in file.arrays.items() if not is_state(name, v)}
    if SAMPLER in arrays:  # the resume file of a run
        arrays = {name: value for name, value in arrays.items() if name in weights}
    elif len(arrays) < len(file.arrays):
        notes = [escape_control(name) for name in file.arrays if name not in arrays]
        log.info("%s: left out what is not a weight: %s", file.path, join_names(notes, 3))
    initial_names = [name for name in weights if new_head and re.search(head, name)]
    if new_head:
        arrays = {name: value for name, value in arrays.items() if not re.search(head, name)}
    shapes = {n: tuple(p.shape) for n, p in weights.items() if n not in initial_names}
    changed = []
    for name, shape in shapes.items() if naming is not None else ():
        if name in arrays and arrays[name].shape != shape:
            before = arrays[name].shape
            arrays[name] = fit_array(naming.canonical_name(name), arrays[name], shape, naming)
            changed += [f"{name} {[*before]} to {[*shape]}"] * (arrays[name].shape == shape)
    if changed:
        log.info("%s: resized as in a conversion: %s", file.path, join_names(changed, 2))
    check_weights(str(file.path), arrays, shapes, head, option="in training train.new_head=true")
    if weights.padding:
        padding = find_padding(file.path, arrays, file.texts)
        check_padding(file.path, padding, weights.padding)
    for name, value in arrays.items():
        weights[name].set_data(Tensor(value, weights[name].dtype))
    for name in initial_names:
        weights[name].init_data()
    return initial_names


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
    with np.errstate(over="ignore"):  # `check_weights` refuses what becomes infinite
        is_float = array.dtype.kind == "f"  # and integers
        return array.astype(np.float32) if array.shape == shape and is_float else array


def check_weights(
    file: str,
    arrays: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple],
    head: str,
    option: str,
    unknown: Sequence[str] = (),
    advice: str = "",
) -> None:
    """Raises ValueError unless the arrays are finite floats of these names and shapes.

    `unknown` are further names in the file. The line says what to do about the classifier, whose
    names match `head` and which `option` leaves newly initialised; then follows `advice`.
    """
    if report := report_differences(arrays, shapes, unknown):
        wrong = [n for n, shape in shapes.items() if n not in arrays or arrays[n].shape != shape]
        remedy = "is it of another network, or other settings under model, data.frames, data.crop?"
        if head and any(re.search(head, name) for name in wrong):
            remedy = "model.num_classes must be its own, or "
            remedy += f"{option} leaves the classifier newly initialised"
        raise ValueError(f"{file} does not fit this network: {report}; {remedy}{advice}")
    if integers := [f"{name} is {a.dtype}" for name, a in arrays.items() if a.dtype.kind != "f"]:
        what = join_names(integers, 3)
        raise ValueError(f"{file} has quantized weights, {what}: take the float32 checkpoint")
    if damaged := [name for name, value in arrays.items() if not np.isfinite(value).all()]:
        raise ValueError(
            f"{file} has weights that are NaN or infinite, {join_names(damaged, 3)}: its training "
            "has diverged; use an earlier checkpoint"
        )


def report_differences(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple], unknown: Sequence[str] = ()
) -> str:
    """One line of all differences in names and shapes; empty if there are none.

    As "missing a, b; unknown c (nearest: d)". A hostile file may have chosen the names.
    """
    unknown = [*unknown, *(name for name in arrays if name not in shapes)]
    pairs = [(name, arrays[name].shape, shape) for name, shape in shapes.items() if name in arrays]
    differences = {
        "missing": [name for name in shapes if name not in arrays],
        "unknown": [*(name_nearest(name, shapes) for name in unknown[:3]), *unknown[3:]],
        "shape": [f"{n} is {[*its]} instead of {[*ours]}" for n, its, ours in pairs if its != ours],
    }
    return "; ".join(
        f"{kind} {join_names([escape_control(name)[:200] for name in names], 3)}"
        for kind, names in differences.items()
        if names
    )


def name_nearest(name: str, names: Iterable[str]) -> str:
    """A name in a file, and the most similar of ours."""
    near = find_nearest(name, names)
    return f"{name} (nearest: {near})" if near else name
