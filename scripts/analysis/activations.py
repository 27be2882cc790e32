"""Records the outputs of a network's cells, and compares arrays."""

import contextlib
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from utils.runtime import eager_mode
from utils.weights.checkpoint import weights_of


def relative_error(value: Any, expected: Any) -> float:
    """The norm of the difference over the norm of `expected`; infinite if shapes differ."""
    value = np.asarray(value, np.float64)
    expected = np.asarray(expected, np.float64)
    if value.shape != expected.shape:
        return float("inf")
    norm = np.linalg.norm(expected)
    difference = np.linalg.norm(value - expected)
    return float(difference / norm) if norm else float(difference != 0)


def set_weights(net: nn.Cell, values: dict[str, np.ndarray]) -> None:
    for name, parameter in weights_of(net).items():
        parameter.set_data(Tensor(values[name], parameter.dtype))


def record_activations(net: nn.Cell, points: list[str], *inputs: np.ndarray) -> dict:
    """Runs the network eagerly; {point: activation}.

    A point is the name of a cell, for its output, or `NAME (input ...)`.
    """
    cells = dict(net.cells_and_names())
    activations: dict[str, Tensor] = {}
    with eager_mode(), contextlib.ExitStack() as stack:
        for point in points:
            name, _, is_input = point.partition(" (input")

            def save_input(cell, values, point=point):
                activations[point] = values[0]

            def save_output(cell, values, output, point=point):
                activations[point] = output

            if is_input:
                handle = cells[name].register_forward_pre_hook(save_input)
            else:
                handle = cells[name].register_forward_hook(save_output)
            stack.callback(handle.remove)
        net(*map(Tensor, inputs))
    return {point: value.asnumpy() for point, value in activations.items()}
