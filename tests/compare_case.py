#!/usr/bin/env python3
"""Compares a network with one of its golden cases, for scripts/verify_device.sh.

    python tests/compare_case.py --config_path Y --case tsm/tests/golden/tsm_r50_8f_small.json
        [--tolerance 1e-4] [--run.device=D]

The config file only chooses network and device. The output is that of
scripts/analysis/compare_step.py: a line for each array, then one JSON object.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

from dataclasses import replace
from typing import Any

import numpy as np
from mindspore import Tensor

from scripts.analysis.activations import record_activations, relative_error, set_weights
from scripts.analysis.compare_step import Difference, copy_weights, report
from tests.golden_cases import (
    UPDATES,
    GoldenCase,
    compute_scores,
    find_case,
    generate_input,
    load_case,
    map_torch_names,
    read_expected_scores,
)
from utils import cli, log, runtime
from utils.networks import Network
from utils.nn import kernels
from utils.settings import NetworkConfig

NOISE = 1e-5  # gradients with a smaller norm are zero in exact arithmetic


def main(
    network: Network, cfg: NetworkConfig, *, case: Path, tolerance: cli.NonNegativeFloat = 1e-4
) -> None:
    # A difference of 1e-4 would otherwise be that of HF32 or TF32, which devices use by default.
    cfg = replace(cfg, run=replace(cfg.run, tf32=False))
    log.start_log(runtime.start(cfg.run))
    golden = find_case(network.name, load_case(case))
    with kernels.use(kernels.select(cfg.run.device)):
        report(compare_with_case(golden), tolerance)


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


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
