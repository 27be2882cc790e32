"""Measurements on several devices, in processes of `utils.verify.worker` under a launcher.

All ranks run the same generator; the worker prints what rank 0 yields.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from utils import build_networks, runtime
from utils.config import Run
from utils.distributed.fusion_planner import even_ends
from utils.runtime import Runtime
from utils.verify.measuring import load_settings, measure_pipelined


class FirstOfSum(nn.Cell):
    """AllReduce of float32 (n,); returns the first element, so little is copied to the host."""

    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, x: Tensor) -> Tensor:
        return ops.slice(self.all_reduce(x), (0,), (1,))


def measure_all_reduce(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Median seconds of AllReduces by size, and whether the sums are right.

    `request`: device, elements (float32, ascending), repeats.
    """
    rt = runtime.start(Run(device=request["device"]))
    expected, probes, correct = rt.size * (rt.size + 1) / 2, [], True
    cell = FirstOfSum()
    for count in request["elements"]:
        values = Tensor(np.full(count, rt.rank + 1, np.float32))
        correct = correct and float(cell(values).asnumpy()[0]) == expected
        probes.append((4 * count, time_exchange(cell, values, request["repeats"])))
    yield {"ranks": rt.size, "correct": correct, "probes": probes}


def time_exchange(cell: nn.Cell, values: Tensor, repeats: int) -> float:
    return build_networks.measure_median_seconds(lambda: cell(values).asnumpy(), repeats, warm_up=2)


def measure_overlap(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Seconds of a train step without AllReduce, with one segment and with several.

    `request`: device, network, config, overrides, segments, repeats. `exchange` is the time of one
    AllReduce of all gradients with nothing else to do.
    """
    cfg = load_settings(request)
    rt, network, repeats = runtime.start(cfg.run), request["network"], request["repeats"]
    batch = build_networks.make_dummy_batch(network, cfg, rt.rank)
    step = build(network, cfg, "none", Runtime(rt.rank, 1, rt.device, rt.seed))
    weights = step.optimizer.parameters
    names, sizes = [p.name for p in weights], [p.size * p.itemsize for p in weights]
    result = {"ranks": rt.size, "bytes": sum(sizes), "alone": time_step(step, batch, repeats)}
    result["one"] = time_step(build(network, cfg, "none", rt), batch, repeats)
    ends = even_ends(names, sizes, request["segments"])
    result["several"] = time_step(build(network, cfg, tuple(ends), rt), batch, repeats)
    result["segments"] = len(ends)
    values = Tensor(np.ones(sum(sizes) // 4, np.float32))
    result["exchange"] = time_exchange(FirstOfSum(), values, repeats)
    yield result


def build(network: str, cfg: Any, all_reduce: Any, rt: Runtime) -> nn.Cell:
    return build_networks.build_train_step(
        network, replace(cfg, run=replace(cfg.run, all_reduce=all_reduce)), rt
    )


def time_step(step: nn.Cell, batch: tuple, repeats: int) -> float:
    """Seconds; the first two steps, which compile, are not timed."""
    inputs = (*batch, *step.draw_factors())
    for _ in range(2):
        step(*inputs).asnumpy()
    return measure_pipelined(step, inputs, repeats)
