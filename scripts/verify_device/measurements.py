"""Measurements on devices, each in a separate process: MindSpore may crash or not end.

    python scripts/verify_device/measurements.py TASK REQUEST --run.device=DEVICE

TASK is a name of TASKS; REQUEST is a JSON object. Each task is a generator of results. Rank 0
prints every result as a line with a JSON object, so a task that fails later leaves the earlier
ones. Several ranks run under scripts/launch.py, which reads `--run.device`.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import os
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from scripts.analysis import build_networks
from utils import runtime
from utils.config import Run
from utils.networks import find_network
from utils.nn import kernels
from utils.testing import golden
from utils.testing.golden import relative_error
from utils.train import amp
from utils.weights import checkpoint_file

# Device -> implementation of depthwise convolutions that the networks use by default.
DEFAULT_IMPLS = {"Ascend": "taps", "GPU": "grouped", "CPU": "frames"}
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
    case = golden.load_case(Path(request["case"]))
    if request["name"]:  # a file of several cases
        case = next(item for item in case if item["name"] == request["name"])
    clip = Tensor(golden.generate_input(case["input_seed"], case["input_shape"]))
    impl = DEFAULT_IMPLS[request["device"]]
    source = find_network(request["network"]).build_golden_case(case, impl)
    with kernels.use(kernels.select(request["device"])):
        yield from measure_levels(request, source, clip)


def measure_levels(
    request: dict[str, Any], source: golden.GoldenCase, clip: Tensor
) -> Iterator[dict[str, float]]:
    """The errors of a golden case at each of its levels: see `measure_parity`."""
    for level in request["levels"]:
        net = amp.cast(source.build_model(), level).set_train(False)
        expected = golden.read_expected_scores(source.case)
        error = np.abs(golden.compute_scores(net, clip) - expected).max() / np.ptp(expected)
        result = {"level": level, "scores": float(error)}
        if level in request["gradients"]:
            result.update(measure_gradients(source, clip, level))
        yield result


def measure_gradients(source: golden.GoldenCase, clip: Tensor, level: str) -> dict:
    """{"loss", "gradients"}: relative errors of the first training step of a golden case."""
    net = amp.cast(source.build_model(training=True), level).set_train(True)
    loss = source.build_loss()
    scale = LOSS_SCALE if level != "O0" else 1.0
    weights = ms.ParameterTuple(net.trainable_params())

    def forward(x, y):
        value = loss(net(x), y)
        return value * scale, value

    label = Tensor(source.build_target())
    step = ms.jit(ms.value_and_grad(forward, None, weights, has_aux=True))
    (_, value), gradients = step(clip, label)
    train = source.case["train"]
    names = golden.map_torch_names(net)
    errors = []
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
    expected = rt.size * (rt.size + 1) / 2
    probes = []
    correct = True
    cell = SummedElement()
    for count in request["elements"]:
        values = Tensor(np.full(count, rt.rank + 1, np.float32))
        correct = correct and float(cell(values).asnumpy()[0]) == expected
        seconds = build_networks.measure_median_seconds(
            lambda values=values: cell(values).asnumpy(), request["repeats"], warm_up=2
        )
        probes.append((4 * count, seconds))
    yield {"ranks": rt.size, "correct": correct, "probes": probes}


TASKS = {
    "parity": measure_parity,
    "all_reduce": measure_all_reduce,
    "difference": measure_difference,
}


def main() -> None:
    for result in TASKS[sys.argv[1]](json.loads(sys.argv[2])):
        if os.environ.get("MS_NODE_ID", "0") == "0":
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
