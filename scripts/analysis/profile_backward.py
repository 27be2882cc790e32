"""Measures on this device when each gradient of a training step is complete.

    python scripts/analysis/profile_backward.py --config_path Y --out profile.json
        [--points 6] [--repeats 7] [--network tsm] [--section.key=value ...]

The step is compiled again with gradients of the last layers only, down to POINTS layers that share
the counted operations evenly: the time that takes is when these gradients are complete. Between the
points the counted operations decide. For scripts/analysis/plan_allreduce.py --profile, and
run.gradient_profile. The last line of stdout is one JSON object.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from utils import cli, log, runtime
from utils.build_networks import (
    build_train_step,
    drop_pretrained,
    make_dummy_batch,
    measure_median_seconds,
)
from utils.distributed.cost_model import Cluster
from utils.distributed.fusion_planner import layer_ends, segments_of
from utils.distributed.gradient_timing import count_backward
from utils.files import report_write_errors, write_text
from utils.networks import Network
from utils.nn.complexity import count_layers


class Gradients(nn.Cell):
    """Forward, and backward as far as the gradients of `weights` need it."""

    def __init__(self, step: nn.Cell, weights: list):
        super().__init__(auto_prefix=False)
        self.step = step
        self.gradients = ms.value_and_grad(step.scaled_loss, None, weights, has_aux=True)

    def construct(self, clip: Tensor, target: Tensor) -> tuple:
        return self.gradients(clip, target)


class Forward(nn.Cell):
    def __init__(self, step: nn.Cell):
        super().__init__(auto_prefix=False)
        self.step = step

    def construct(self, clip: Tensor, target: Tensor) -> tuple:
        return self.step.scaled_loss(clip, target)


def main(
    network: Network, cfg, *, out: Path, points: cli.PositiveInt = 6, repeats: cli.PositiveInt = 7
) -> None:
    with report_write_errors(out, "--out"):  # before the measuring
        out.parent.mkdir(parents=True, exist_ok=True)
    cfg = drop_pretrained(replace(cfg, run=replace(cfg.run, all_reduce="none")))
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    step, batch = build_train_step(network.name, cfg, rt), make_dummy_batch(network.name, cfg)
    measured = measure(step, *batch, points, repeats)
    result = {"config": cfg.run.out.name, "device": rt.device, "batch": cfg.data.batch, **measured}
    with report_write_errors(out, "--out"):
        write_text(out, json.dumps(result, indent=1) + "\n")
    times = {name: result[name] for name in ("forward_seconds", "step_seconds")}
    print(json.dumps({"profile": str(out), **times, "gradients": len(result["ready_seconds"])}))


def measure(step: nn.Cell, clip: Tensor, target: Tensor, points: int, repeats: int) -> dict:
    """Seconds from the start of a step: `forward_seconds`, `ready_seconds` by name, and all."""
    factors = step.draw_factors()
    for value in factors:
        step.set_factors(value)
    shown = clip if step.mix is None else step.mix(clip, target)
    weights = list(step.optimizer.parameters)
    over = counted(step, weights, shown)  # the share of the backward pass, 0..1
    forward = seconds(Forward(step).set_train(), shown, target, repeats)
    fractions, times = [0.0], [forward]
    for first in chosen(over, [p.name for p in weights], points):
        cell = Gradients(step, ms.ParameterTuple(weights[first:])).set_train()
        times.append(seconds(cell, shown, target, repeats))
        fractions.append(over[first:].max())
        log.log.info("gradients from %s on: %.1f ms", weights[first].name, 1e3 * times[-1])
    whole = measure_median_seconds(
        lambda: step(clip, target, *factors).asnumpy(), repeats, warm_up=2
    )
    ready = np.interp(over, fractions, np.maximum.accumulate(times))  # noise makes no time run back
    return {
        "forward_seconds": round(forward, 6),
        "step_seconds": round(max(whole, float(ready.max())), 6),
        "ready_seconds": {p.name: round(float(t), 6) for p, t in zip(weights, ready)},
    }


def counted(step: nn.Cell, weights: list, shown: Tensor) -> np.ndarray:
    """The share of the backward pass that is over when a weight's gradient is complete."""
    clip = shown.shape[-4:] if shown.ndim > 4 else shown.shape[1:]
    layers = count_layers(step.net, tuple(clip))
    names = [p.name for p in weights]
    result = count_backward(names, [0] * len(names), layers, 1, Cluster(step_seconds=3.0))
    return (result.ready - result.forward) / 2


def chosen(over: np.ndarray, names: list[str], points: int) -> list[int]:
    """The first weights of layers, from the last layers to the first, at even shares."""
    firsts = [first for first, _ in segments_of(layer_ends(names))]
    wanted = np.linspace(0, 1, points + 1)[1:-1]
    near = [min(firsts, key=lambda first: abs(over[first] - fraction)) for fraction in wanted]
    return sorted({*near, 0}, reverse=True)


def seconds(cell: nn.Cell, clip: Tensor, target: Tensor, repeats: int) -> float:
    return measure_median_seconds(
        lambda: first_array(cell(clip, target)).asnumpy(), repeats, warm_up=2
    )


def first_array(outputs) -> Tensor:
    return first_array(outputs[0]) if isinstance(outputs, tuple) else outputs


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
