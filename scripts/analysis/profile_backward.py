"""Measures when each gradient of a training step is complete on this device.

    python scripts/analysis/profile_backward.py --config_path Y --out profile.json
        [--points 6] [--repeats 7] [--network tsm] [--section.key=value ...]

The step is compiled again with the gradients of the last layers only, from POINTS different layers
on, at equal distances in counted operations. Its time is the time at which these gradients are
complete. Between the points the times are interpolated by the counted operations.
scripts/analysis/plan_allreduce.py --profile and run.gradient_profile read the file. The last line
of stdout is one JSON object.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Callable

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.runtime import prepare_process

prepare_process()

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from scripts.analysis import build_networks
from scripts.analysis.build_networks import measure_median_seconds
from utils import cli, log, runtime
from utils.complexity import count_layers
from utils.cost_model import Cluster
from utils.distributed.fusion_planner import layer_ends, segments_of
from utils.distributed.gradient_timing import count_backward
from utils.files import report_write_errors, write_text
from utils.networks import Network


class StepFunction(nn.Cell):
    """A function of a train step, compiled as one graph."""

    def __init__(self, step: nn.Cell, function: Callable):
        super().__init__(auto_prefix=False)
        self.step = step
        self.function = function

    def construct(self, clip: Tensor, target: Tensor) -> tuple:
        return self.function(clip, target)


def main(
    network: Network, cfg, *, out: Path, points: cli.PositiveInt = 6, repeats: cli.PositiveInt = 7
) -> None:
    with report_write_errors(out, "--out"):  # before the measuring
        out.parent.mkdir(parents=True, exist_ok=True)
    cfg = build_networks.drop_pretrained(replace(cfg, run=replace(cfg.run, all_reduce="none")))
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    step = build_networks.build_train_step(network.name, cfg, rt)
    batch = build_networks.make_dummy_batch(network.name, cfg)
    shape = network.get_input_shape(cfg)
    measured = measure(step, batch, shape, points, repeats)
    result = {"config": cfg.run.out.name, "device": rt.device, "batch": cfg.data.batch, **measured}
    with report_write_errors(out, "--out"):
        write_text(out, json.dumps(result, indent=1) + "\n")
    times = {name: result[name] for name in ("forward_seconds", "step_seconds")}
    print(json.dumps({"profile": str(out), **times, "gradients": len(result["ready_seconds"])}))


def measure(step: nn.Cell, batch: tuple, shape: tuple, points: int, repeats: int) -> dict:
    """Seconds from the start of a step: `forward_seconds`, `ready_seconds` by name, `step_seconds`.

    `batch`: clips, targets; `shape`: of one clip as the network reads it.
    """
    factors = step.make_dropout_factors()
    for value in factors:
        step.set_dropout_factors(value)
    clip, target = batch
    network_input = clip if step.mix is None else step.mix(clip, target)

    def time_function(function: Callable) -> float:
        cell = StepFunction(step, function).set_train()

        def run() -> None:
            outputs = cell(network_input, target)
            while isinstance(outputs, tuple):
                outputs = outputs[0]
            outputs.asnumpy()

        return measure_median_seconds(run, repeats, warm_up=2)

    weights = list(step.optimizer.parameters)
    names = [p.name for p in weights]
    completed = count_fractions(step.net, names, shape)
    forward = time_function(step.scaled_loss)
    fractions = [0.0]
    times = [forward]
    for index in choose_layers(completed, names, points):
        # The backward pass ends with the gradients of this layer.
        last_weights = ms.ParameterTuple(weights[index:])
        gradients = ms.value_and_grad(step.scaled_loss, None, last_weights, has_aux=True)
        times.append(time_function(gradients))
        fractions.append(completed[index:].max())
        log.log.info("gradients from %s on: %.1f ms", names[index], 1e3 * times[-1])
    whole = measure_median_seconds(lambda: step(*batch, *factors).asnumpy(), repeats, warm_up=2)
    ready = np.interp(completed, fractions, np.maximum.accumulate(times))  # noise may reverse times
    return {
        "forward_seconds": round(forward, 6),
        "step_seconds": round(max(whole, float(ready.max())), 6),
        "ready_seconds": {name: round(float(t), 6) for name, t in zip(names, ready)},
    }


def count_fractions(net: nn.Cell, names: list[str], shape: tuple) -> np.ndarray:
    """The fraction of the backward pass, 0..1, after which each gradient is complete."""
    layers = count_layers(net, shape)
    result = count_backward(names, [0] * len(names), layers, 1, Cluster(step_seconds=3.0))
    return (result.ready - result.forward) / 2


def choose_layers(completed: np.ndarray, names: list[str], points: int) -> list[int]:
    """The first weight of each chosen layer, from the last layer to the first."""
    starts = [start for start, _ in segments_of(layer_ends(names))]
    fractions = np.linspace(0, 1, points + 1)[1:-1]
    near = [min(starts, key=lambda start: abs(completed[start] - f)) for f in fractions]
    return sorted({*near, 0}, reverse=True)


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
