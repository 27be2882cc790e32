"""Measurements on one device, in the process of `utils.verify.worker`: each task is a generator.

A request is a dict of plain values; every result is one, too.
"""

import csv
import inspect
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from utils import build_networks, runtime
from utils.config import Run, load_config
from utils.networks import find_network
from utils.nn.conv3d import DepthwiseConv3d
from utils.testing import step_comparison
from utils.testing.golden import (
    evaluation,
    expected_evaluation,
    fill_input,
    load_case,
    spread,
    torch_names,
)
from utils.train import amp
from utils.train.profiler import RECORDED, SKIPPED, WARM_UP, StepProfiler
from utils.verify.graph_costs import compile_seconds
from utils.weights import checkpoint_file

LOSS_SCALE = 1024.0  # of the float16 levels of parity
LEAST_GRADIENT = 1e-4  # of the longest one; shorter ones are rounding
QUANTILE = 0.9  # of the gradients' errors: a few near a kink of ReLU differ by percents
# Depthwise forms of the networks' own settings: `frames` is the fastest on a CPU.
FORMS = {"Ascend": "taps", "GPU": "grouped", "CPU": "frames"}


def measure_parity(request: dict[str, Any]) -> Iterator[dict[str, float]]:
    """A golden case at amp levels: errors of scores, loss and gradients.

    `request`: device, network, case (file), name (of a case in a file of several), levels,
    gradients (the levels that also take a training step). Scores: the largest difference over the
    spread of the original's; loss: relative; gradients: the 90 % quantile of the relative errors
    of their lengths.
    """
    runtime.start(Run(device=request["device"], tf32=False))
    golden = find_network(request["network"]).golden_case
    case = read_case(Path(request["case"]), request["name"])
    clip = Tensor(fill_input(case["input_seed"], case["input_shape"]))
    options: dict[str, Any] = {}
    if "depthwise_impl" in inspect.signature(golden.build_network).parameters:
        options = {"depthwise_impl": FORMS[request["device"]]}
    for level in request["levels"]:
        net = amp.cast(golden.build_network(case, **options), level).set_train(False)
        expected = expected_evaluation(case)
        error = np.abs(evaluation(net, clip) - expected).max() / spread(expected)
        result = {"level": level, "scores": float(error)}
        if level in request["gradients"]:
            result.update(measure_gradients(golden, case, clip, level, options))
        yield result


def read_case(path: Path, name: str) -> dict:
    """The golden case of a file; with a name, that one of a file of several."""
    case = load_case(path)
    return next(each for each in case if each["name"] == name) if name else case


def measure_gradients(golden, case: dict, clip: Tensor, level: str, options: dict) -> dict:
    """{"loss", "gradients"}: relative errors of the first training step of a golden case."""
    net = amp.cast(golden.build_network(case, training=True, **options), level).set_train(True)
    loss, scale = golden.build_loss(case), LOSS_SCALE if level != "O0" else 1.0
    weights = ms.ParameterTuple(net.trainable_params())

    def forward(x, y):
        value = loss(net(x), y)
        return value * scale, value

    label = Tensor(golden.build_target(case))
    step = ms.jit(ms.value_and_grad(forward, None, weights, has_aux=True))
    (_, value), gradients = step(clip, label)
    train = case["train"]
    exact = train.get("grad_norm64", train["grad_norm"])
    least, names, errors = LEAST_GRADIENT * max(exact.values()), torch_names(net), []
    for parameter, gradient in zip(weights, gradients):
        length = float(np.linalg.norm(gradient.asnumpy().astype(np.float64))) / scale
        expected = exact.get(names[parameter.name], 0.0)  # not every case records norms
        if expected > least:
            errors.append(step_comparison.off(length, expected))
    return {
        "loss": step_comparison.off(float(value.asnumpy()), train.get("loss64", train["loss"])),
        "gradients": float(np.quantile(errors, QUANTILE)),
    }


def measure_step(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Train steps on synthetic clips: first their times, then, in a second result, a trace.

    `request`: device, network, config, overrides, repeats, trace (a folder). Seconds; launches are
    kernels of one step; `fractions` are parts of the traced time, empty if the back end has none.
    """
    cfg = load_settings(request)
    rt = runtime.start(cfg.run)
    step = build_networks.build_train_step(request["network"], cfg, rt)
    inputs = (*build_networks.make_dummy_batch(request["network"], cfg), *step.draw_factors())
    result = {"batch": cfg.data.batch, "compile": compile_seconds(step, *inputs)}
    began = time.monotonic()
    loss = float(step(*inputs).asnumpy()[0])
    result.update(first_step=time.monotonic() - began, loss=loss)
    result["step"] = measure_pipelined(step, inputs, request["repeats"])
    if rt.device != "CPU":
        result["peak_gb"] = ms.runtime.max_memory_allocated() / 2**30
    yield result
    profiling = StepProfiler(Path(request["trace"]), rt)
    profiling.start()
    for _ in range(SKIPPED + WARM_UP + RECORDED + 1):
        step(*inputs).asnumpy()
        profiling.step()
    fractions = profiling.stop()
    yield {**result, "shares": fractions, "launches": count_launches(Path(request["trace"]))}


def load_settings(request: dict[str, Any]) -> Any:
    """The settings of a request, with fresh weights."""
    config = find_network(request["network"]).config
    overrides = [*request["overrides"], f"run.device={request['device']}"]
    return build_networks.drop_pretrained(load_config(config, Path(request["config"]), overrides))


def measure_pipelined(step: nn.Cell, inputs: tuple, repeats: int) -> float:
    """Seconds of a step if its values are read after the next one is launched, as in training."""
    before, began = step(*inputs), time.monotonic()
    for _ in range(repeats):
        current = step(*inputs)
        before.asnumpy()
        before = current
    before.asnumpy()
    return (time.monotonic() - began) / (repeats + 1)


def count_launches(folder: Path) -> int:
    """Kernels of one traced step, from the newest trace in `folder`; 0 if it lists none.

    On Ascend a row of kernel_details.csv is a kernel; on a CPU an event of the trace.
    """
    tables = sorted(folder.rglob("kernel_details.csv"))
    if tables:
        with open(tables[-1], newline="") as file:
            return round(sum(1 for _ in csv.DictReader(file)) / RECORDED)
    traces = sorted(folder.rglob("trace_view.json"))
    events = json.loads(traces[-1].read_text()) if traces else []
    kernels = [each for each in events if each.get("args", {}).get("type") == "HostCpuOps"]
    return round(len(kernels) / RECORDED)


class DepthwiseSum(nn.Cell):
    """The sum of a depthwise convolution's output, whose gradients are timed."""

    def __init__(self, channels: int, kernel: tuple, stride: int, impl: str):
        super().__init__()
        self.conv = DepthwiseConv3d(channels, kernel, stride, impl)

    def construct(self, x: Tensor) -> Tensor:
        return ops.cast(self.conv(x), mstype.float32).sum()


def measure_impl(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Forward and backward of one depthwise impl at several shapes.

    `request`: device, impl, shapes ([name, (N, C, T, H, W), kernel, stride, count]), repeats.
    Seconds of one layer; float16 on a device, float32 on a CPU.
    """
    runtime.start(Run(device=request["device"]))
    kind = np.float32 if request["device"] == "CPU" else np.float16
    for name, shape, kernel, stride, _ in request["shapes"]:
        cell = DepthwiseSum(shape[1], tuple(kernel), stride, request["impl"])
        weights = ms.ParameterTuple(cell.trainable_params())
        step = ms.jit(ms.value_and_grad(cell, 0, weights))
        x = Tensor(np.random.RandomState(0).standard_normal(shape).astype(kind))

        def run(step=step, x=x):
            outputs = step(x)
            wait_for(request["device"], outputs[0], outputs[1][0], *outputs[1][1])

        yield {
            "shape": name,
            "seconds": build_networks.measure_median_seconds(run, request["repeats"], warm_up=2),
        }


def wait_for(device: str, *outputs: Tensor) -> None:
    """Returns when the outputs are computed; only on a CPU does it read them."""
    if device != "CPU":
        ms.runtime.synchronize()
        return
    for output in outputs:
        output.asnumpy()


def measure_difference(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """How far apart the arrays of two checkpoints are.

    `request`: first, second (files). `equal`: bit for bit; `largest`: of the lengths of the
    differences over those of the first; infinity is written as 1e30.
    """
    first, second = (checkpoint_file.read(Path(request[side])) for side in ("first", "second"))
    if first.keys() != second.keys():
        raise ValueError("the checkpoints have arrays of different names")
    equal = all(np.array_equal(first[name], second[name]) for name in first)
    errors = [step_comparison.relative(second[name], first[name]) for name in first]
    largest = float(np.nan_to_num(max(errors), nan=1e30, posinf=1e30))
    yield {"arrays": len(first), "equal": equal, "largest": largest}
