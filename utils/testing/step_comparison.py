"""Records one training step, stage by stage, and compares it with another one.

A record holds the complete batch and weights. Of every activation, gradient and update it holds
elements at even distances, so that the record of a large network stays small.
"""

import json
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor

from utils.config import convert_scalar
from utils.files import report_write_errors
from utils.testing.golden import (
    evaluation,
    expected_evaluation,
    fill_input,
    record_taps,
    torch_names,
)
from utils.train.train_step import TrainStep
from utils.weights.checkpoint import weights_of

SAMPLE = 65_536  # elements kept of a tensor
UPDATES = 5  # of a golden case
NOISE = 1e-5  # below it lie gradients that are zero by algebra
DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, NotImplementedError, LookupError, MemoryError)
STAGES = ("data", "weights", "forward", "loss", "gradients", "updates")


class Difference(NamedTuple):
    """How far difference one thing is in two runs, relative to the recorded one."""

    stage: str
    name: str
    error: float


def take_step(step: TrainStep, clip: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    """Runs one training step; {"stage/name": values}. The network is left as it was updated."""
    before = {name: p.asnumpy().copy() for name, p in weights_of(step.net).items()}
    record = {"data/clip": clip, "data/target": target}
    record.update({f"weights/{name}": value for name, value in before.items()})
    inputs = Tensor(clip), Tensor(target)
    step.set_train()
    factors = step.draw_factors()
    for value in factors:
        step.set_factors(value)
    network_input = inputs[0] if step.mix is None else step.mix(*inputs)
    # Cells without parameters are left out: they only pass their input on.
    cells = [n for n, cell in step.net.cells_and_names() if n and list(cell.get_parameters())]
    for name, value in record_taps(step.net, cells, network_input.asnumpy()).items():
        record[f"forward/{strip_wrappers(name)}"] = sample(value)
    restore_weights(step, before)  # batch norm statistics have changed
    (_, loss, _), grads = ms.jit(step.gradients)(network_input, inputs[1])
    record["loss/loss"] = np.array([float(loss.asnumpy())])
    for parameter, grad in zip(step.optimizer.parameters, step.scaler.unscale(grads)):
        record[f"gradients/{parameter.name}"] = sample(grad.asnumpy())
    restore_weights(step, before)
    step(*inputs, *factors)
    for name, parameter in weights_of(step.net).items():
        record[f"updates/{name}"] = sample(parameter.asnumpy() - before[name])
    return record


def strip_wrappers(name: str) -> str:
    """The name of a cell without the wrappers of mixed precision."""
    parts = [part for part in name.split(".") if part != "_backbone"]
    return ".".join(parts[1:] if parts[:1] == ["net"] else parts) or "scores"


def restore_weights(step: TrainStep, values: dict) -> None:
    for name, parameter in weights_of(step.net).items():
        parameter.set_data(Tensor(values[name], parameter.dtype))


def sample(values: np.ndarray) -> np.ndarray:
    """At most SAMPLE elements at even distances, float32."""
    flat = np.asarray(values, np.float32).reshape(-1)
    return flat[:: -(-flat.size // SAMPLE)]


def save_record(path: Path, record: dict[str, np.ndarray]) -> None:
    """Raises ValueError where the file cannot be written; no half of one is left."""
    temporary = path.with_name(path.name + ".tmp")
    with report_write_errors(path):
        with open(temporary, "wb") as file:
            np.savez(file, **record)
        temporary.replace(path)


def load_record(path: Path) -> dict[str, np.ndarray]:
    """What `save_record` wrote. Raises ValueError for any other file."""
    try:
        with np.load(path) as file:
            record = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, TypeError, AttributeError, *DAMAGED_ZIP) as error:
        raise ValueError(f"--against: {path} is no record: {str(error)[:200]}") from None
    if not {"data/clip", "data/target", "loss/loss"} <= set(record):
        raise ValueError(f"--against: {path} is no record: it has no data or no loss")
    return record


def differences(record: dict, recorded: dict) -> list[Difference]:
    """The errors of all arrays that both records have, stage by stage."""
    result = []
    for stage in STAGES:
        for key, expected in recorded.items():
            if key.startswith(stage + "/") and key in record:
                result.append(
                    Difference(stage, key[len(stage) + 1 :], relative(record[key], expected))
                )
    return result


def relative(value: np.ndarray, expected: np.ndarray) -> float:
    """The norm of the difference over the norm of `expected`; infinite if shapes differ."""
    if value.shape != expected.shape:
        return float("inf")
    value, expected = value.astype(np.float64), expected.astype(np.float64)
    norm, difference = np.linalg.norm(expected), np.linalg.norm(value - expected)
    return float(difference / norm) if norm else float(difference > 0)


def change_recipe(case: dict, golden, text: str) -> dict:
    """The golden case with other settings: "NAME=VALUE NAME=VALUE", names of `golden.RECIPE`.

    Raises ValueError for another name, or a value of another type.
    """
    changes: dict = {}
    for pair in text.split():
        name, _, value = pair.partition("=")
        if name not in golden.RECIPE:
            names = ", ".join(golden.RECIPE) or "nothing"
            raise ValueError(f"--recipe: {name!r} cannot be changed in this network; {names} can")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        changes[name] = convert_scalar(parsed, type(golden.RECIPE[name]), f"--recipe: {name}")
    return {**case, "train": {**case["train"], **changes}} if "train" in case else case


def against_case(case: dict, golden) -> list[Difference]:
    """A golden case: activations in evaluation, loss, gradients, statistics, updates."""
    clip = fill_input(case["input_seed"], case["input_shape"])
    label = Tensor(golden.build_target(case)) if "labels" in case else None
    net = golden.build_network(case)
    taps = {golden.cell_name(point): tap for point, tap in case["eval"]["taps"].items()}
    seen = record_taps(net, [point for point in taps if point], clip)
    result = [Difference("forward", n, activation_error(x, taps[n])) for n, x in seen.items()]
    scores, expected = evaluation(net, Tensor(clip)), expected_evaluation(case)
    result.append(Difference("forward", "scores", relative(scores, expected)))
    if "train" not in case:
        return result
    train, step = case["train"], golden.build_train_step(case, "step")
    names, weights = torch_names(step.net), step.optimizer.parameters
    before = {p.name: p.asnumpy().copy() for p in weights}
    (_, loss, _), grads = ms.jit(step.gradients)(Tensor(clip), label)
    exact, recorded = train.get("grad_norm64", train["grad_norm"]), train["step"]
    expected = train.get("loss64", train["loss"])
    result.append(Difference("loss", "loss", off(float(loss.asnumpy()), expected)))
    for parameter, grad in zip(weights, grads):
        length = float(np.linalg.norm(grad.asnumpy()))
        name = names[parameter.name]
        if exact[name] > NOISE:
            result.append(Difference("gradients", name, off(length, exact[name])))
    restore_weights(step, weights_values(golden.build_network(case)))
    losses = recorded.get("losses64", recorded["losses"])[:UPDATES]
    for i, expected in enumerate(losses):
        loss = float(step(Tensor(clip), label)[0].asnumpy())
        result.append(Difference("updates", f"loss before update {i + 1}", off(loss, expected)))
    for parameter in weights if "delta_norm64" in recorded else ():
        length = float(np.linalg.norm(parameter.asnumpy() - before[parameter.name]))
        name = names[parameter.name]
        expected, rounded = (recorded[key][name] for key in ("delta_norm64", "delta_norm"))
        if off(rounded, expected) < 0.02:  # the others are rounding, in the original too
            result.append(Difference("updates", name, off(length, expected)))
    return result


def weights_values(net) -> dict[str, np.ndarray]:
    return {name: p.asnumpy() for name, p in weights_of(net).items()}


def off(value: float, expected: float) -> float:
    return abs(value - expected) / max(abs(expected), 1e-30)


def activation_error(x: np.ndarray, tap: dict) -> float:
    """The largest of three errors over the recorded deviation: mean, deviation, first elements."""
    first = np.abs(x.reshape(-1)[:8] - tap["first"]).max()
    errors = abs(x.mean() - tap["mean"]), abs(x.std() - tap["std"]), first
    return float(max(errors) / max(tap["std"], 1e-3))
