"""Comparisons with the recorded results of an original network, shared by the networks' tests."""

import gzip
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Optional

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from scripts.analysis.activations import record_activations, relative_error
from tests.golden_cases import compute_scores, generate_input, get_shapes, map_torch_names
from utils.inference.checkpoint import draw_no_weights
from utils.nn import kernels
from utils.nn.kernels.cpu import Cpu
from utils.settings import Run
from utils.train.train import choose_kernels
from utils.train.train_step import TrainStep

# Decorates a test that only needs names and shapes: the networks that it builds draw no weights.
without_values = draw_no_weights()


def use_cpu_kernels() -> AbstractContextManager:
    """Networks that are built inside have the operators of a training in float32 on a CPU."""
    back_end = choose_kernels(Run(device="CPU"), "CPU")
    if not isinstance(back_end, Cpu):
        pytest.skip("the CPU kernels cannot be compiled here")
    return kernels.use(back_end)


def mark_slow_except(names: Iterable, *quick: Any) -> list:
    """Parameters of a test; all except `quick` are marked slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def make_clip(case: dict) -> Tensor:
    """The clips or images of a case."""
    return Tensor(generate_input(case["input_seed"], case["input_shape"]))


def make_inputs(case: dict) -> tuple[Tensor, Tensor]:
    """The clips or images of a case, and their labels int32 (N,)."""
    return make_clip(case), Tensor(np.array(case["labels"], np.int32))


def make_cosine_settings(case: dict, **changes: Any) -> SimpleNamespace:
    """The settings `train` of recorded learning rates of PySlowFast: warm-up, then a cosine."""
    settings = {
        "lr": case["base_lr"],
        "end_lr": case["cosine_end_lr"],
        "warmup_lr": case["warmup_start_lr"],
        "warmup_epochs": case["warmup_epochs"],
        "epochs": case["max_epoch"],
        "base_batch": 0,
    }
    return SimpleNamespace(**{**settings, **changes})


def read_manifest(path: Path) -> dict[str, tuple]:
    """{name: shape} of a published checkpoint; the lines of the file are `NAME 64,3,7,7`."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    pairs = [line.split(" ") for line in lines]
    return {n: () if s == "scalar" else tuple(map(int, s.split(","))) for n, s in pairs}


def count_trained(net: nn.Cell) -> tuple[int, int]:
    """(elements, tensors) of all trained parameters."""
    weights = net.trainable_params()
    return sum(p.size for p in weights), len(weights)


def assert_manifest(net: nn.Cell, manifest: list) -> None:
    """The names and shapes of weights and statistics, and the order of the trained weights."""
    names = map_torch_names(net)
    expected = {n: tuple(shape) for n, shape, _ in manifest if "num_batches_tracked" not in n}
    assert {names[name]: shape for name, shape in get_shapes(net).items()} == expected
    trained = [names[p.name] for p in net.trainable_params()]
    assert trained == [name for name in expected if ".running_" not in name]


def assert_scores(net: nn.Cell, case: dict, expected: list, limit: Optional[float] = None) -> None:
    """The outputs for the input of a case, within `limit`, by default 1e-4 of their spread."""
    result = compute_scores(net, make_clip(case))
    expected = np.array(expected)
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() <= (limit or 1e-4 * np.ptp(expected))


def assert_activations(
    net: nn.Cell, case: dict, cell_name: Callable, reorder: Callable = lambda point, x: x
) -> None:
    """Mean and deviation within 1e-4 of the deviation, the first eight values within 1e-3.

    `cell_name` gives the name of the cell for a recorded point, or "" to leave it out. `reorder`
    returns the activation in the order of the original, or None to leave it out.
    """
    taps = {cell_name(point): tap for point, tap in case["eval"]["taps"].items()}
    taps.pop("", None)
    assert taps
    for point, x in record_activations(net, list(taps), make_clip(case).asnumpy()).items():
        x = reorder(point, x)
        expected = taps[point]
        if x is None:
            continue
        scale = max(expected["std"], 1e-3)
        assert list(x.shape) == expected["shape"], point
        assert abs(x.mean() - expected["mean"]) < 1e-4 * scale, point
        assert abs(x.std() - expected["std"]) < 1e-4 * scale, point
        assert np.abs(x.reshape(-1)[:8] - expected["first"]).max() < 1e-3 * scale, point


def compute_gradients(net: nn.Cell, loss: nn.Cell, *inputs: Tensor) -> tuple:
    """(loss, outputs, {PyTorch's name: norm of the gradient}) of one training step."""
    weights = net.trainable_params()

    def forward(x, y):
        outputs = net(x)
        return loss(outputs, y), outputs

    gradients = ms.value_and_grad(forward, None, ms.ParameterTuple(weights), has_aux=True)
    (value, outputs), grads = ms.jit(gradients)(*inputs)
    names = map_torch_names(net)
    norms = {
        names[p.name]: np.linalg.norm(g.asnumpy().astype(np.float64))
        for p, g in zip(weights, grads)
    }
    return float(value.asnumpy()), outputs, norms


def assert_statistics(net: nn.Cell, expected: dict, rel: float) -> None:
    """The norms of the running statistics; `expected` are PyTorch's names."""
    names = map_torch_names(net)
    values = {names[name]: p for name, p in net.parameters_dict().items() if name in names}
    for buffer, norm in expected.items():
        if not buffer.endswith("num_batches_tracked"):
            assert np.linalg.norm(values[buffer].asnumpy()) == pytest.approx(norm, rel=rel), buffer


def assert_updates(step: TrainStep, inputs: tuple, recorded: dict, lengths: str) -> int:
    """Losses, and lengths of the updates of parameters, of five updates against float64.

    Losses may differ by three times the error of the original's float32, plus 1e-3; lengths by
    three times it, plus 2 %, or 3 % for one parameter in a hundred. Parameters whose float32 error
    in the original is above 2 % are left out of that: the rounding of the weights hides small
    updates, and a ReLU is at its kink. Over all parameters the root mean square of the errors, and
    the number of errors above 2 %, may hardly be larger than in the original's float32. `lengths`
    is the key of the lengths in `recorded`. Returns the number of parameters that were compared one
    by one.
    """
    before = {p.name: p.asnumpy().copy() for p in step.net.trainable_params()}
    losses = [float(step(*inputs)[0].asnumpy()) for _ in recorded["losses"]]
    noise = np.abs(np.divide(recorded["losses"], recorded["losses64"]) - 1).max()
    np.testing.assert_allclose(losses, recorded["losses64"], rtol=1e-3 + 3 * noise)
    names = map_torch_names(step.net)
    errors = []
    original_errors = []
    exceptions = []
    for parameter in step.net.trainable_params():
        name = names[parameter.name]
        expected = recorded[f"{lengths}64"].get(name)
        if expected:
            moved = np.linalg.norm(parameter.asnumpy().astype(np.float64) - before[parameter.name])
            errors.append(relative_error(moved, expected))
            original_errors.append(relative_error(recorded[lengths][name], expected))
            if original_errors[-1] < 0.02:
                assert errors[-1] < 0.03 + 3 * original_errors[-1], name
                if errors[-1] >= 0.02 + 3 * original_errors[-1]:
                    exceptions.append(name)
    assert len(exceptions) <= 0.01 * len(errors), exceptions
    mean_square = np.mean(np.square(errors))
    assert mean_square < 1.2 * np.mean(np.square(original_errors)) + 1e-6
    large = np.greater(errors, 0.02).sum()
    assert large <= np.greater(original_errors, 0.02).sum() + 0.02 * len(errors)
    return int(np.less(original_errors, 0.02).sum())
