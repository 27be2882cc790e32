"""Measurements on devices, each in a separate process: MindSpore may crash or not end.

    python utils/verify/measurements.py TASK REQUEST --run.device=DEVICE

TASK is a name of TASKS; REQUEST is a JSON object. Each task is a generator of results. Rank 0
prints every result as a line with a JSON object, so a task that fails later leaves the earlier
ones. Several ranks run under scripts/launch.py, which reads `--run.device`.
"""

import csv
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.runtime import prepare_process

prepare_process()

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from utils import build_networks, runtime
from utils.config import Run, load_config
from utils.data.synthetic.pattern_images import draw_cifar10
from utils.distributed.fusion_planner import even_ends
from utils.networks import find_network
from utils.nn.conv3d import DepthwiseConv3d
from utils.runtime import Runtime
from utils.testing import golden
from utils.testing.golden import relative_error
from utils.train import amp
from utils.train.profiler import RECORDED, SKIPPED, WARM_UP, StepProfiler
from utils.verify.convolutions import DEFAULT_IMPLS
from utils.verify.graph_costs import measure_compile_seconds
from utils.weights import checkpoint_file

DISTINCT_IMAGES = 200  # of the 10,000 in each file
LOSS_SCALE = 1024.0  # of the float16 levels of parity
MIN_GRADIENT = 1e-4  # of the largest norm; smaller ones are rounding errors
QUANTILE = 0.9  # of the gradients' errors: a few near a kink of ReLU differ by percents


def measure_parity(request: dict[str, Any]) -> Iterator[dict[str, float]]:
    """Errors of scores, loss and gradients of a golden case at amp levels.

    `request`: device, network, case (file), name (of a case in a file of several), levels,
    gradients (the levels that also take a training step). Scores: the largest difference over the
    range of the original's; loss: relative; gradients: the 90 % quantile of the relative errors of
    their norms.
    """
    runtime.start(Run(device=request["device"], tf32=False))
    source = find_network(request["network"]).golden_case
    case = golden.load_case(Path(request["case"]))
    if request["name"]:  # a file of several cases
        case = next(item for item in case if item["name"] == request["name"])
    clip = Tensor(golden.generate_input(case["input_seed"], case["input_shape"]))
    options: dict[str, Any] = {}
    if "depthwise_impl" in inspect.signature(source.build_network).parameters:
        options = {"depthwise_impl": DEFAULT_IMPLS[request["device"]]}
    for level in request["levels"]:
        net = amp.cast(source.build_network(case, **options), level).set_train(False)
        expected = golden.read_expected_scores(case)
        error = np.abs(golden.compute_scores(net, clip) - expected).max() / np.ptp(expected)
        result = {"level": level, "scores": float(error)}
        if level in request["gradients"]:
            result.update(measure_gradients(source, case, clip, level, options))
        yield result


def measure_gradients(source, case: dict, clip: Tensor, level: str, options: dict) -> dict:
    """{"loss", "gradients"}: relative errors of the first training step of a golden case."""
    net = amp.cast(source.build_network(case, training=True, **options), level).set_train(True)
    loss, scale = source.build_loss(case), LOSS_SCALE if level != "O0" else 1.0
    weights = ms.ParameterTuple(net.trainable_params())

    def forward(x, y):
        value = loss(net(x), y)
        return value * scale, value

    label = Tensor(source.build_target(case))
    step = ms.jit(ms.value_and_grad(forward, None, weights, has_aux=True))
    (_, value), gradients = step(clip, label)
    train, names, errors = case["train"], golden.map_torch_names(net), []
    exact = train.get("grad_norm64", train["grad_norm"])
    minimum = MIN_GRADIENT * max(exact.values())
    for parameter, gradient in zip(weights, gradients):
        norm = float(np.linalg.norm(gradient.asnumpy().astype(np.float64))) / scale
        expected = exact.get(names[parameter.name], 0.0)  # not every case records norms
        if expected > minimum:
            errors.append(relative_error(norm, expected))
    return {
        "loss": relative_error(value.asnumpy(), train.get("loss64", train["loss"])),
        "gradients": float(np.quantile(errors, QUANTILE)),
    }


def measure_step(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Times of train steps on synthetic clips; a second result adds those of a trace.

    `request`: device, network, config, overrides, repeats, trace (a folder). Seconds; launches are
    kernels of one step; `shares` are parts of the traced time, empty if the back end has none.
    """
    cfg = load_settings(request)
    rt = runtime.start(cfg.run)
    step = build_networks.build_train_step(request["network"], cfg, rt)
    batch = build_networks.make_dummy_batch(request["network"], cfg)
    inputs = (*batch, *step.make_dropout_factors())
    result = {"batch": cfg.data.batch, "compile": measure_compile_seconds(step, *inputs)}
    start = time.monotonic()
    loss = float(step(*inputs).asnumpy()[0])
    result.update(first_step=time.monotonic() - start, loss=loss)
    result["step"] = measure_pipelined(step, inputs, request["repeats"])
    if rt.device != "CPU":
        result["peak_gb"] = ms.runtime.max_memory_allocated() / 2**30
    yield result
    profiling = StepProfiler(Path(request["trace"]), rt)
    profiling.start()
    for _ in range(SKIPPED + WARM_UP + RECORDED + 1):
        step(*inputs).asnumpy()
        profiling.step()
    result["shares"] = profiling.stop()
    yield {**result, "launches": count_launches(Path(request["trace"]))}


def load_settings(request: dict[str, Any]) -> Any:
    """The settings of a request, with fresh weights."""
    config = find_network(request["network"]).config
    overrides = [*request["overrides"], f"run.device={request['device']}"]
    return build_networks.drop_pretrained(load_config(config, Path(request["config"]), overrides))


def measure_pipelined(step: nn.Cell, inputs: tuple, repeats: int) -> float:
    """Seconds of a step if its values are read after the next one is launched, as in training."""
    previous, start = step(*inputs), time.monotonic()
    for _ in range(repeats):
        current = step(*inputs)
        previous.asnumpy()
        previous = current
    previous.asnumpy()
    return (time.monotonic() - start) / (repeats + 1)


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
    kernels = [event for event in events if event.get("args", {}).get("type") == "HostCpuOps"]
    return round(len(kernels) / RECORDED)


class DepthwiseSum(nn.Cell):
    """The sum of a depthwise convolution's output, whose gradients are timed."""

    def __init__(self, channels: int, kernel: tuple, stride: int, impl: str):
        super().__init__()
        self.conv = DepthwiseConv3d(channels, kernel, stride, impl)

    def construct(self, x: Tensor) -> Tensor:
        return ops.cast(self.conv(x), mstype.float32).sum()


def measure_depthwise(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Forward and backward of a depthwise convolution at several shapes.

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
            if request["device"] == "CPU":
                for output in (outputs[0], outputs[1][0], *outputs[1][1]):
                    output.asnumpy()
            else:
                ms.runtime.synchronize()

        seconds = build_networks.measure_median_seconds(run, request["repeats"], warm_up=2)
        yield {"shape": name, "seconds": seconds}


def measure_difference(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The differences between the arrays of two checkpoints.

    `request`: first, second (files). `equal`: bit for bit; `largest`: the largest relative error of
    an array of the second; infinity is written as 1e30.
    """
    expected, arrays = (checkpoint_file.read(Path(request[key])) for key in ("first", "second"))
    if expected.keys() != arrays.keys():
        raise ValueError("the checkpoints have arrays of different names")
    equal = all(np.array_equal(arrays[name], expected[name]) for name in expected)
    errors = [relative_error(arrays[name], expected[name]) for name in expected]
    largest = float(np.nan_to_num(max(errors), nan=1e30, posinf=1e30))
    yield {"arrays": len(expected), "equal": equal, "largest": largest}


class SummedElement(nn.Cell):
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
    cell = SummedElement()
    for count in request["elements"]:
        values = Tensor(np.full(count, rt.rank + 1, np.float32))
        correct = correct and float(cell(values).asnumpy()[0]) == expected
        probes.append((4 * count, time_all_reduce(cell, values, request["repeats"])))
    yield {"ranks": rt.size, "correct": correct, "probes": probes}


def time_all_reduce(cell: nn.Cell, values: Tensor, repeats: int) -> float:
    return build_networks.measure_median_seconds(lambda: cell(values).asnumpy(), repeats, warm_up=2)


def measure_overlap(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Seconds of a train step without AllReduce, with one segment and with several.

    `request`: device, network, config, overrides, segments, repeats. `exchange` is the time of one
    AllReduce of all gradients with nothing else to do.
    """
    cfg = load_settings(request)
    rt, network, repeats = runtime.start(cfg.run), request["network"], request["repeats"]
    batch = build_networks.make_dummy_batch(network, cfg, rt.rank)

    def build(all_reduce: Any, rt: Runtime) -> nn.Cell:
        run = replace(cfg.run, all_reduce=all_reduce)
        return build_networks.build_train_step(network, replace(cfg, run=run), rt)

    def time_step(step: nn.Cell) -> float:
        inputs = (*batch, *step.make_dropout_factors())
        for _ in range(2):  # these compile
            step(*inputs).asnumpy()
        return measure_pipelined(step, inputs, repeats)

    step = build("none", Runtime(rt.rank, 1, rt.device, rt.seed))
    weights = step.optimizer.parameters
    names, sizes = [p.name for p in weights], [p.size * p.itemsize for p in weights]
    ends = even_ends(names, sizes, request["segments"])
    values = Tensor(np.ones(sum(sizes) // 4, np.float32))
    yield {
        "ranks": rt.size,
        "bytes": sum(sizes),
        "segments": len(ends),
        "alone": time_step(step),
        "one": time_step(build("none", rt)),
        "several": time_step(build(tuple(ends), rt)),
        "exchange": time_all_reduce(SummedElement(), values, repeats),
    }


def draw_images(request: dict[str, Any]) -> Iterator[dict[str, int]]:
    """Draws the images of ResNet's smoke recipe. `request`: folder."""
    yield draw_cifar10(Path(request["folder"]), 0, DISTINCT_IMAGES)


TASKS = {
    "parity": measure_parity,
    "step": measure_step,
    "depthwise": measure_depthwise,
    "all_reduce": measure_all_reduce,
    "overlap": measure_overlap,
    "difference": measure_difference,
    "images": draw_images,
}


def main() -> None:
    for result in TASKS[sys.argv[1]](json.loads(sys.argv[2])):
        if os.environ.get("MS_NODE_ID", "0") == "0":
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
