"""A worker of benchmarks/scaling/measure_scaling.py: probes the network, then times train steps.

    msrun ... benchmarks/scaling/worker.py --config_path Y --splits 1,2,4 --steps 20
        --out FILE [--section.key=value ...]

Rank 0 writes FILE: seconds of AllReduces by size, of a step without one, and of a step with each
number of segments, while all workers do the same.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.runtime import prepare_process

prepare_process()

import numpy as np
from mindspore import Tensor

from utils import cli, runtime
from utils.build_networks import build_train_step, make_dummy_batch, measure_median_seconds
from utils.distributed.fusion_planner import even_ends
from utils.evaluate.metrics import AllReduceSum
from utils.files import write_text
from utils.networks import Network
from utils.runtime import Runtime

PROBES = 2**10, 2**16, 2**18, 2**20  # elements of float32


def main(network: Network, cfg, *, splits: str, steps: int, out: Path) -> None:
    rt = runtime.start(cfg.run)
    result = {"ranks": rt.size, "probes": measure_all_reduces(steps), "steps": {}}
    alone = Runtime(rt.rank, 1, rt.device, rt.seed)  # the same step without AllReduces
    step = build_train_step(network.name, cfg, alone)
    batch = make_dummy_batch(network.name, cfg, rt.rank)
    result["compute"] = measure_step(step, batch, steps)
    weights = step.optimizer.parameters
    names, sizes = [p.name for p in weights], [p.size * p.itemsize for p in weights]
    for count in map(int, splits.split(",")):
        ends = even_ends(names, sizes, count)
        run = replace(cfg.run, all_reduce=tuple(ends))
        step = build_train_step(network.name, replace(cfg, run=run), rt)
        result["steps"][count] = {"ends": ends, "seconds": measure_step(step, batch, steps)}
    if rt.is_main_process:
        write_text(out, json.dumps({**result, "names": names, "sizes": sizes}))


def measure_all_reduces(repeats: int) -> list[tuple[int, float]]:
    """(bytes, median seconds) of AllReduces of several sizes."""
    reduce, result = AllReduceSum(), []
    for count in PROBES:
        values = Tensor(np.ones(count, np.float32))
        seconds = measure_median_seconds(lambda v=values: reduce(v).asnumpy(), repeats, warm_up=2)
        result.append((4 * count, seconds))
    return result


def measure_step(step, batch: tuple, repeats: int) -> float:
    inputs = (*batch, *step.make_dropout_factors())
    return measure_median_seconds(lambda: step(*inputs).asnumpy(), repeats, warm_up=2)


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
