"""The operators of the networks in four back ends, one of which is chosen per network.

    with kernels.use(kernels.select("Ascend")):
        net = TSM(...)

Layers take their operators from `current()` when they are built, and hold no branch on devices.
`plain.Plain` defines what the operators compute; the other back ends replace some of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from utils.nn.kernels.plain import Gpu, Plain

PLAIN = Plain()
_current: ContextVar[Plain] = ContextVar("kernels", default=PLAIN)


def select(device: str) -> Plain:
    """The operators for a device. A training on a CPU may use `cpu.Cpu` instead."""
    if device == "Ascend":
        from utils.nn.kernels.ascend import Ascend  # here: no other device needs it

        return Ascend()
    return Gpu() if device == "GPU" else Plain()


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
    from utils.nn.kernels.cpu import CompiledKernel  # here: a training needs it not

    CompiledKernel.only_shapes = True
    try:
        yield
    finally:
        CompiledKernel.only_shapes = False
