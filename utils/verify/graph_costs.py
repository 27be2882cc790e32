"""What a graph costs to compile and to run: seconds, memory. One graph a process."""

import time

import mindspore
from mindspore import Tensor, nn

from utils import log
from utils.build_networks import build_eval_network, build_train_step, make_dummy_batch
from utils.networks import find_network
from utils.processes import read_peak_memory
from utils.runtime import Runtime, release_memory

# Graphs that are only compiled, and that are run as well.
PARTS = ("train_compile", "eval_compile", "train", "eval")
STEPS = 2


def check(kind: str) -> None:
    """ValueError for a kind of measurement that has no parts."""
    if kind not in ("compile", "memory"):
        raise ValueError(f"--part goes with compile and memory, not with {kind}")


def measure(network: str, cfg, rt: Runtime, part: str) -> dict:
    """The training or the evaluation graph of a batch of made-up clips.

    Seconds to compile it; the most memory of this process, framework and compiler included, and of
    a device that has its own, GB.
    """
    inputs = make_dummy_batch(network, cfg)
    if part.startswith("train"):
        cell = build_train_step(network, cfg, rt)
        inputs = (*inputs, *cell.draw_factors())
    else:
        cell = build_eval_network(network, cfg)
        inputs = (inputs[0].reshape(-1, *find_network(network).dataset.get_input_shape(cfg.data)),)
    log.log.info("%s ...", part)
    result = {"seconds": round(compile_seconds(cell, *inputs), 2)}
    for _ in range(0 if part.endswith("compile") else STEPS):
        outputs = cell(*inputs)
        (outputs[0] if isinstance(outputs, tuple) else outputs).asnumpy()
    result["peak_gb"] = round(read_peak_memory(), 3)
    if rt.device != "CPU":
        result["device_peak_gb"] = round(mindspore.runtime.max_memory_allocated() / 1e9, 3)
    return result


def compile_seconds(cell: nn.Cell, *inputs: Tensor) -> float:
    cell.check_names_and_refresh_name()  # as the first call does: folded norms have a new weight
    began = time.monotonic()
    cell.compile(*inputs)
    release_memory()
    return time.monotonic() - began
