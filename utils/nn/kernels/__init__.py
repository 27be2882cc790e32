"""The operators of the networks in three back ends, one of which is chosen per network.

    with kernels.use(kernels.select("Ascend")):
        net = TSM(...)

Layers take their operators from `current()` when they are built, and hold no branch on devices.
`plain.Plain` defines what the operators compute; the other back ends replace some of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Union
from unittest import mock

import numpy as np
from mindspore import Tensor, ops

from utils.nn.kernels.ascend import Ascend
from utils.nn.kernels.plain import Gpu, Plain

DEVICES = {"Ascend": Ascend, "GPU": Gpu, "CPU": Plain}
PLAIN = Plain()

_current: ContextVar[Plain] = ContextVar("kernels", default=PLAIN)


def select(device: str) -> Plain:
    """The operators for a device. A training on a CPU may use `cpu.operators.Cpu` instead."""
    return DEVICES[device]()


def current() -> Plain:
    """The operators of the network that is being built; outside of `use`, the plain ones."""
    return _current.get()


@contextmanager
def use(kernels: Plain) -> Iterator[None]:
    """Layers that are built inside have the operators of `kernels`."""
    token = _current.set(kernels)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Inside, compiled kernels of a network that runs eagerly return zeros of the right shapes.

    They cannot compute there: in eager mode, slices and transpositions are views, and the kernels
    read whole arrays.
    """

    def return_zeros(kernel: ops.Custom, *inputs: Tensor) -> Union[Tensor, tuple]:
        shapes = kernel.out_shape(*(tuple(x.shape) for x in inputs))
        if shapes and isinstance(shapes[0], tuple):
            return tuple(make_zeros(shape) for shape in shapes)
        return make_zeros(shapes)

    with mock.patch.object(ops.Custom, "__call__", return_zeros):
        yield


def make_zeros(shape: Union[int, tuple]) -> Tensor:
    return Tensor(np.zeros(shape, np.float32))
