"""The operators of the networks in four back ends, one of which is chosen per network.

    with kernels.use(kernels.select("Ascend")):
        net = TSM(...)

Layers take their operators from `current()` when they are built, and hold no branch on devices.
`plain.Plain` defines what the operators compute; the other back ends replace some of them.
"""

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from mindspore import get_context

from utils.nn.kernels.plain import Gpu, Plain

PLAIN = Plain()
CPUINFO = Path("/proc/cpuinfo")
_current: ContextVar[Plain] = ContextVar("kernels", default=PLAIN)


def select(device: str) -> Plain:
    """The operators for a device. A training on a CPU may use `cpu.Cpu` instead."""
    if device == "Ascend":
        from utils.nn.kernels.ascend import Ascend  # here: no other device needs it

        return Ascend()
    return Gpu() if device == "GPU" else Plain()


def current() -> Plain:
    """The operators of the network that is being built; outside of `use`, the plain ones."""
    warn_of_avx512()
    return _current.get()


@functools.cache
def warn_of_avx512() -> None:
    """Logs one line in a program that has not called `utils.runtime.start_device`, if it needs it.

    With AVX-512, oneDNN computes MindSpore's float32 convolutions in a scalar reference loop.
    """
    capped = {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"} & {*os.environ}
    if capped or get_context("device_target") != "CPU" or not CPUINFO.is_file():
        return
    if "avx512f" in CPUINFO.read_text():
        logging.getLogger(__name__).warning(
            "MindSpore's convolutions are ten times slower with AVX-512: set the environment "
            "variable ONEDNN_MAX_CPU_ISA=AVX2 before the first kernel, and graph mode"
        )


@contextmanager
def use(kernels: Plain) -> Iterator[None]:
    """Layers that are built inside have the operators of `kernels`."""
    token = _current.set(kernels)
    try:
        yield
    finally:
        _current.reset(token)
