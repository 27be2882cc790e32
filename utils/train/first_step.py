"""Before the first step: compiling the graph, and how many steps a device is fed at a time."""

import time

import numpy as np
from mindspore import Tensor

from utils.log import log
from utils.runtime import Runtime, release_memory
from utils.train.train_step import TrainStep


def choose_sink_size(batches: int, most: int) -> int:
    """Steps at a time: as many as there may be, so that no batch is left over."""
    return next(size for size in range(min(most, batches), 0, -1) if batches % size == 0)


def compile_step(step: TrainStep, data, rt: Runtime) -> float:
    """Builds the graph for the shapes of a data set, with a log line before and after; seconds."""
    log.info("compiling the graph ...")
    began = time.monotonic()
    inputs = [
        Tensor(np.zeros(shape, kind))
        for shape, kind in zip(data.output_shapes(), data.output_types())
    ]
    step.compile(*inputs)
    release_memory()
    seconds = time.monotonic() - began
    log.info("compiled in %.1f s", seconds)
    if rt.device == "Ascend":
        log.info(
            "the first step also compiles the device's kernels, which can take minutes "
            "(run.op_compile: prebuilt uses CANN's own)"
        )
    return seconds
