"""Comparisons with the recorded results of an original network, shared by the networks' tests."""

from typing import Callable

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from utils.testing.golden import generate_input, map_torch_names, record_activations, relative_error
from utils.train.train_step import TrainStep


def make_clip(case: dict) -> Tensor:
    """The clips or images of a case."""
    return Tensor(generate_input(case["input_seed"], case["input_shape"]))


def make_inputs(case: dict) -> tuple[Tensor, Tensor]:
    """The clips or images of a case, and their labels int32 (N,)."""
    return make_clip(case), Tensor(np.array(case["labels"], np.int32))


def assert_activations(
    net: nn.Cell, taps: dict, clip: Tensor, reorder: Callable = lambda point, x: x
) -> None:
    """Mean and deviation within 1e-4 of the deviation, the first eight values within 1e-3.

    `taps`: {name of a cell: what the original recorded}. `reorder` returns the activation in the
    order of the original, or None to leave it out.
    """
    assert taps
    for point, x in record_activations(net, list(taps), clip.asnumpy()).items():
        x, expected = reorder(point, x), taps[point]
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

    They may differ by three times the error of the original's float32, plus 1e-3 (losses) or 2 %
    (lengths). Parameters whose float32 error in the original is above 2 % are left out: a ReLU at
    its kink. `lengths` is the key of the lengths in `recorded`. Returns the number of parameters
    that were compared.
    """
    before = {p.name: p.asnumpy().copy() for p in step.net.trainable_params()}
    losses = [float(step(*inputs)[0].asnumpy()) for _ in recorded["losses"]]
    noise = np.abs(np.divide(recorded["losses"], recorded["losses64"]) - 1).max()
    np.testing.assert_allclose(losses, recorded["losses64"], rtol=1e-3 + 3 * noise)
    names, compared = map_torch_names(step.net), 0
    for parameter in step.net.trainable_params():
        name = names[parameter.name]
        expected = recorded[f"{lengths}64"].get(name)
        original_error = relative_error(recorded[lengths][name], expected) if expected else 1
        if original_error < 0.02:
            tolerance = 0.02 + 3 * original_error
            moved = parameter.asnumpy().astype(np.float64) - before[parameter.name]
            assert np.linalg.norm(moved) == pytest.approx(expected, rel=tolerance), name
            compared += 1
    return compared
