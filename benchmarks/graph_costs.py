"""Memory to compile and run a graph. Each graph needs a new process."""

import time

import mindspore
from mindspore import Tensor, nn

from scripts.analysis.build_networks import build_cell
from utils import log
from utils.networks import find_network
from utils.processes import read_peak_memory
from utils.runtime import Runtime, release_memory
from utils.settings import NetworkConfig
from utils.train.memory import estimate_peak

# The first two graphs are only compiled; the others also run.
PARTS = ("train_compile", "eval_compile", "train", "eval")
STEPS = 2


def measure_graph(network: str, cfg: NetworkConfig, rt: Runtime, part: str) -> dict:
    """Compiles the training or the evaluation graph of a batch of random clips, and may run it.

    `peak_gb`, the most memory of this process; `device_peak_gb`, of a device that has its own;
    `estimate_gb`, of a training on a CPU, the peak that train.py expects.
    """
    cell, inputs = build_cell(network, cfg=cfg, rt=rt, mode=part.partition("_")[0])
    log.log.info("%s ...", part)
    result = {}
    if part == "train" and rt.device == "CPU":
        shape = find_network(network).get_input_shape(cfg)
        clips = inputs[0].reshape(-1, *shape).shape
        result["estimate_gb"] = round(estimate_peak(cell.net, clips), 3)
    measure_compile_seconds(cell, *inputs)
    for _ in range(0 if part.endswith("compile") else STEPS):
        outputs = cell(*inputs)
        (outputs[0] if isinstance(outputs, tuple) else outputs).asnumpy()
    result["peak_gb"] = round(read_peak_memory(), 3)
    if rt.device != "CPU":
        result["device_peak_gb"] = round(mindspore.runtime.max_memory_allocated() / 1e9, 3)
    return result


def measure_compile_seconds(cell: nn.Cell, *inputs: Tensor) -> float:
    """Compiles a graph, releases the compiler's memory, and returns the seconds."""
    cell.check_names_and_refresh_name()  # as the first call does; fused norms have a new weight
    began = time.monotonic()
    cell.compile(*inputs)
    release_memory()
    return time.monotonic() - began
