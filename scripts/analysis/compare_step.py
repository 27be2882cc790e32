#!/usr/bin/env python3
"""Compares one training step with a recorded one, layer by layer.

    python scripts/analysis/compare_step.py --config_path Y --record F.npz [--checkpoint_path C]
        [--overwrite]
    python scripts/analysis/compare_step.py --config_path Y --against F.npz [--checkpoint_path C]
        [--tolerance 1e-4] [--section.key=value ...]

--record takes one step: the first batch of the config file's data, weights from the checkpoint or
from the seed. It writes batch, weights, activations, loss, gradients and update. --against takes
the same step again, for example on another device, with other settings, or after a change. It
compares batch and weights, then takes both from the record, so that an error in them does not hide
later ones.

Prints a line for each array: stage, name, relative error. The last line of stdout is one JSON
object: first (stage, name and error of the first beyond the tolerance, or null), largest (by
stage), tolerance. A record holds the complete batch and weights, and of every activation, gradient
and update elements at equal distances, so that the record of a large network stays small.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from dataclasses import replace
from typing import NamedTuple, Optional

import numpy as np
from mindspore import Tensor, nn

from scripts.analysis.activations import record_activations, relative_error, set_weights
from utils import cli, log, runtime
from utils.files import check_target, report_write_errors, write_beside
from utils.networks import Network, find_build
from utils.nn.layers import NormReLU
from utils.settings import NetworkConfig
from utils.train.plan import Plan
from utils.train.train import build_training
from utils.train.train_step import TrainStep
from utils.weights.checkpoint import weights_of

MAX_ELEMENTS = 65_536  # of a recorded tensor
STAGES = ("data", "weights", "forward", "loss", "gradients", "updates")


class Difference(NamedTuple):
    """The relative error of one array of a stage."""

    stage: str
    name: str
    error: float


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    record: Optional[Path] = None,
    against: Optional[Path] = None,
    checkpoint_path: Optional[Path] = None,
    tolerance: cli.NonNegativeFloat = 1e-4,
    overwrite: bool = False,
) -> None:
    if bool(record) == bool(against):
        raise ValueError("give one of --record, --against")
    if record:
        check_target(record, [checkpoint_path or ""], "--record", overwrite)
    # A difference of 1e-4 would otherwise be that of HF32 or TF32, which devices use by default.
    cfg = replace(cfg, run=replace(cfg.run, tf32=False))
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    # The config file's network and the first batch of its data.
    records = network.read_records(cfg, "train")
    sampler = network.build_train_sampler(cfg, records, rt)
    if checkpoint_path:
        cfg = replace(cfg, train=replace(cfg.train, pretrained=checkpoint_path))
    step = build_training(Plan(network, cfg, rt, sampler), find_build(network.name))[0]
    rows = network.train_rows(records, cfg=cfg, sampler=sampler, epochs=1, skip=0)
    batches = network.create_dataset(cfg, rows, cfg.data.workers)
    clip, target = next(batches.create_tuple_iterator(num_epochs=1, output_numpy=True))
    if record:
        arrays = record_step(step, clip, target)
        with report_write_errors(record, "--record"), write_beside(record) as temporary:
            with open(temporary, "wb") as file:
                np.savez(file, **arrays)
            temporary.replace(record)
        print(json.dumps({"record": str(record), "entries": len(arrays)}))
        return
    try:
        with np.load(against) as file:
            recorded = {name: file[name] for name in file.files}
        recorded_batch = recorded["data/clip"], recorded["data/target"]
    except Exception as error:  # numpy and zipfile raise nearly every kind
        raise ValueError(f"--against: {against} is not a record: {str(error)[:200]}") from None
    own = {f"weights/{name}": value for name, value in copy_weights(step.net).items()}
    shapes = {key: value.shape for key, value in recorded.items() if key.startswith("weights/")}
    if shapes != {key: value.shape for key, value in own.items()}:
        raise ValueError("--against: the record is of another network, or of other classes")
    set_weights(step.net, {key.removeprefix("weights/"): recorded[key] for key in own})
    arrays = record_step(step, *recorded_batch)
    arrays.update({"data/clip": clip, "data/target": target, **own})
    differences = [
        Difference(stage, key.removeprefix(f"{stage}/"), relative_error(arrays[key], recorded[key]))
        for stage in STAGES
        for key in recorded
        if key.startswith(f"{stage}/") and key in arrays
    ]
    report(differences, tolerance)


def report(result: list[Difference], tolerance: float) -> None:
    earliest = None
    largest = {}
    for item in result:
        is_beyond = not item.error <= tolerance
        if is_beyond and not earliest:
            earliest = {**item._asdict(), "error": round_error(item.error)}
        largest[item.stage] = max(largest.get(item.stage, 0.0), item.error)
        print(f"{item.stage:10s} {item.error:10.3e} {'>' if is_beyond else ' '} {item.name}")
    largest = {stage: round_error(error) for stage, error in largest.items()}
    print(json.dumps({"first": earliest, "largest": largest, "tolerance": tolerance}))


def round_error(error: float) -> Optional[float]:
    """The error to three digits; None for infinity and NaN, which JSON lacks."""
    return float(f"{error:.3g}") if np.isfinite(error) else None


def record_step(step: TrainStep, clip: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    """Runs one training step; {"stage/name": values}. The network keeps the updated weights."""
    for _, cell in step.net.cells_and_names():
        if isinstance(cell, NormReLU):
            cell.kernel = None  # the norm's own output is recorded
    before = copy_weights(step.net)
    record = {"data/clip": clip, "data/target": target}
    record.update({f"weights/{name}": value for name, value in before.items()})
    inputs = Tensor(clip), Tensor(target)
    step.set_train()
    factors = step.make_dropout_factors()
    for value in factors:
        step.dropout_factors.set_data(value.reshape(step.dropout_factors.shape))
    network_input = inputs[0] if step.mix is None else step.mix(*inputs)
    # Cells without parameters are left out: most of them only pass their input on.
    cells = [n for n, cell in step.net.cells_and_names() if n and list(cell.get_parameters())]
    for name, value in record_activations(step.net, cells, network_input.asnumpy()).items():
        parts = [part for part in name.split(".") if part != "_backbone"]  # of mixed precision
        parts = parts[1:] if parts[:1] == ["net"] else parts
        record[f"forward/{'.'.join(parts) or 'scores'}"] = subsample(value)
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


def copy_weights(net: nn.Cell) -> dict[str, np.ndarray]:
    return {name: p.asnumpy().copy() for name, p in weights_of(net).items()}


def subsample(values: np.ndarray) -> np.ndarray:
    """At most MAX_ELEMENTS elements at equal distances, float32."""
    flat = np.asarray(values, np.float32).reshape(-1)
    return flat[:: -(-flat.size // MAX_ELEMENTS)]


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
