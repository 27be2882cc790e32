"""Records one training step, stage by stage, and compares it with another one.

A record holds the complete batch and weights. Of every activation, gradient and update it holds
elements at equal distances, so that the record of a large network stays small.
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, nn

from utils.files import guard_outputs, report_write_errors
from utils.nn import kernels
from utils.nn.layers import NormReLU
from utils.testing.golden import (
    UPDATES,
    GoldenCase,
    compute_scores,
    generate_input,
    map_torch_names,
    read_expected_scores,
    record_activations,
    relative_error,
    set_weights,
)
from utils.train.train_step import TrainStep
from utils.weights.checkpoint import weights_of

MAX_ELEMENTS = 65_536  # of a recorded tensor
NOISE = 1e-5  # gradients with a smaller norm are zero in exact arithmetic
DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, NotImplementedError, LookupError, MemoryError)
STAGES = ("data", "weights", "forward", "loss", "gradients", "updates")


class Difference(NamedTuple):
    """The relative error of one array of a stage."""

    stage: str
    name: str
    error: float


def record_step(step: TrainStep, clip: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    """Runs one training step; {"stage/name": values}. The network keeps the updated weights."""
    for _, cell in step.net.cells_and_names():
        if isinstance(cell, NormReLU):
            cell.norm_relu = kernels.PLAIN.norm_relu()  # the norm's own output is recorded
    before = copy_weights(step.net)
    record = {"data/clip": clip, "data/target": target}
    record.update({f"weights/{name}": value for name, value in before.items()})
    inputs = Tensor(clip), Tensor(target)
    step.set_train()
    factors = step.make_dropout_factors()
    for value in factors:
        step.set_dropout_factors(value)
    network_input = inputs[0] if step.mix is None else step.mix(*inputs)
    # Cells without parameters are left out: most of them only pass their input on.
    cells = [n for n, cell in step.net.cells_and_names() if n and list(cell.get_parameters())]
    for name, value in record_activations(step.net, cells, network_input.asnumpy()).items():
        record[f"forward/{strip_wrappers(name)}"] = subsample(value)
    set_weights(step.net, before)  # batch norm statistics have changed
    loss, _, grads = step.backward(network_input, inputs[1])
    record["loss/loss"] = np.array([float(loss.asnumpy())])
    for parameter, grad in zip(step.optimizer.parameters, step.scaler.unscale(grads)):
        record[f"gradients/{parameter.name}"] = subsample(grad.asnumpy())
    set_weights(step.net, before)
    step(*inputs, *factors)
    for name, value in copy_weights(step.net).items():
        record[f"updates/{name}"] = subsample(value - before[name])
    return record


def strip_wrappers(name: str) -> str:
    """The name of a cell without the wrappers of mixed precision."""
    parts = [part for part in name.split(".") if part != "_backbone"]
    return ".".join(parts[1:] if parts[:1] == ["net"] else parts) or "scores"


def copy_weights(net: nn.Cell) -> dict[str, np.ndarray]:
    return {name: p.asnumpy().copy() for name, p in weights_of(net).items()}


def subsample(values: np.ndarray) -> np.ndarray:
    """At most MAX_ELEMENTS elements at equal distances, float32."""
    flat = np.asarray(values, np.float32).reshape(-1)
    return flat[:: -(-flat.size // MAX_ELEMENTS)]


def save_record(path: Path, record: dict[str, np.ndarray]) -> None:
    """Writes the whole file or none. Raises ValueError if it cannot be written."""
    temporary = path.with_name(path.name + ".tmp")
    with report_write_errors(path, "--record"), guard_outputs([path], option="--record"):
        with open(temporary, "wb") as file:
            np.savez(file, **record)
        temporary.replace(path)


def load_record(path: Path) -> dict[str, np.ndarray]:
    """Reads a file of `save_record`. Raises ValueError for any other file."""
    try:
        with np.load(path) as file:
            record = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, TypeError, AttributeError, *DAMAGED_ZIP) as error:
        raise ValueError(f"--against: {path} is not a record: {str(error)[:200]}") from None
    if not {"data/clip", "data/target", "loss/loss"} <= set(record):
        raise ValueError(f"--against: {path} is not a record: it has no data or no loss")
    return record


def compare_records(record: dict, recorded: dict) -> list[Difference]:
    """The errors of all arrays that both records have, stage by stage."""
    names = [(*key.split("/", 1), key) for key in recorded if key in record]
    names.sort(key=lambda item: STAGES.index(item[0]))
    return [Difference(s, n, relative_error(record[key], recorded[key])) for s, n, key in names]


def compare_with_case(golden: GoldenCase) -> list[Difference]:
    """The errors against a golden case: activations and scores in evaluation, then training.

    Training: loss, norms of gradients, loss before each update, norms of updates.
    """
    case = golden.case
    clip = generate_input(case["input_seed"], case["input_shape"])
    net = golden.build_model()
    taps = {golden.cell_name(point): tap for point, tap in case["eval"]["taps"].items()}
    activations = record_activations(net, [point for point in taps if point], clip)
    result = [
        Difference("forward", name, compare_statistics(value, taps[name]))
        for name, value in activations.items()
    ]

    def add(stage: str, name: str, value: Any, expected: Any) -> None:
        result.append(Difference(stage, name, relative_error(value, expected)))

    add("forward", "scores", compute_scores(net, Tensor(clip)), read_expected_scores(case))
    if "train" not in case:
        return result
    train = case["train"]
    step = golden.build_train_step("step")
    inputs = Tensor(clip), Tensor(golden.build_target())
    names = map_torch_names(step.net)
    weights = step.optimizer.parameters
    before = copy_weights(step.net)
    loss, _, grads = step.backward(*inputs)
    exact = train.get("grad_norm64", train["grad_norm"])
    recorded = train["step"]
    add("loss", "loss", loss.asnumpy(), train.get("loss64", train["loss"]))
    for name, grad in zip((names[p.name] for p in weights), grads):
        if exact[name] > NOISE:
            add("gradients", name, np.linalg.norm(grad.asnumpy()), exact[name])
    set_weights(step.net, before)
    for i, expected in enumerate(recorded.get("losses64", recorded["losses"])[:UPDATES]):
        loss = step(*inputs)[0].asnumpy()
        add("updates", f"loss before update {i + 1}", loss, expected)
    for parameter in weights if "delta_norm64" in recorded else ():
        length = np.linalg.norm(parameter.asnumpy() - before[parameter.name])
        name = names[parameter.name]
        expected, rounded = (recorded[key][name] for key in ("delta_norm64", "delta_norm"))
        if relative_error(rounded, expected) < 0.02:  # the others are noise in the original too
            add("updates", name, length, expected)
    return result


def compare_statistics(values: np.ndarray, tap: dict) -> float:
    """The largest error of mean, standard deviation and first eight elements.

    Relative to the recorded standard deviation.
    """
    elements = np.abs(values.reshape(-1)[:8] - tap["first"]).max()
    errors = abs(values.mean() - tap["mean"]), abs(values.std() - tap["std"]), elements
    return float(max(errors) / max(tap["std"], 1e-3))
