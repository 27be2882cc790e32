"""How rows become batches: how many workers, threads or processes, how many batches ahead.

The workers are our own (`utils.data.worker_pool`); MindData takes their batches on and holds two
more. Its own workers hold at least 8 batches and 17 rows each, whatever its prefetch size, and as
processes they need workers * (prefetch size + 2) rows of /dev/shm, without which they end in a bus
error.

A row of any network here holds Python's lock for 4 to 8 % of its time: what decodes, resizes and
copies lets it go. So 8 threads wait for it 1 to 7 % of theirs, 16 threads 5 to 26 %. Processes do
not, but each is a copy of this one that grows as it touches the lists: they are for more than 8.

Only on a CPU. A process that has opened an Ascend or a GPU is full of threads of ACL, HCCL or CUDA;
a fork copies the locks that these hold at that moment, and may hang. So there `auto` means threads,
at most 16: the lock's time, 4 to 8 % of each row, leaves little to gain from more.
"""

import functools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import psutil
from mindspore.communication import get_local_rank_size

from utils.cpu_cores import is_bound
from utils.data.worker_pool import Batches
from utils.log import log

MOST_THREADS = 8  # by `auto` on a CPU; processes if there are more workers
MOST_DEVICE_THREADS = 16  # by `auto` on Ascend and GPU
FEWEST, MOST = 2, 8  # batches ahead by `auto`
PART = 1 / 4  # of the free memory, for `auto`: evaluation and the network want some too
IN_MINDDATA = 2  # batches on their way
CONTAINER = Path("/sys/fs/cgroup")


def generator(
    source: Any, columns: Sequence[str], blank: Sequence, data, batch: int
) -> ds.GeneratorDataset:
    """The whole batches of a random-access source, in its order; `blank` is a row of its shapes.

    Raises ValueError if they do not fit into memory, or for worker processes beside a device.
    """
    size = batch * sum(np.asarray(value).nbytes for value in blank)
    workers, processes = choose_workers(data.workers, data.processes, get_device())
    ahead = batches_ahead(data.prefetch, size, IN_MINDDATA, max(1, len(source) // batch))
    more = f"; batches of {size / 1e6:.3g} MB ahead: {ahead}"
    announce(data.workers, processes, more, workers)
    ds.config.set_prefetch_size(1)
    return ds.GeneratorDataset(
        Batches(source, blank, batch, workers, processes, ahead),
        list(columns),
        shuffle=False,
        num_parallel_workers=1,
        python_multiprocessing=False,
    )


def get_device() -> str:
    """CPU, GPU or Ascend: the device that MindSpore computes on."""
    return ms.get_context("device_target")


def choose_workers(
    wanted: Union[int, str], processes: Union[bool, str], device: str
) -> tuple[int, bool]:
    """How many workers, by `data.workers`, and whether they are processes, by `data.processes`.

    Raises ValueError for `data.processes: true` on Ascend and GPU.
    """
    workers = worker_count(wanted)
    if device == "CPU":
        return workers, workers > MOST_THREADS if processes == "auto" else bool(processes)
    if processes is True:
        raise ValueError(
            f"data.processes: true forks this process, which has opened run.device {device}, and "
            "the worker processes may hang; set data.processes to auto or false, for threads"
        )
    return min(workers, MOST_DEVICE_THREADS) if wanted == "auto" else workers, False


@functools.cache
def announce(
    wanted: Union[int, str], processes: bool = False, more: str = "", workers: int = 0
) -> None:
    """Logs who makes the batches, and why: once, not at every evaluation of a run.

    `workers` is their number, if it is not that of `worker_count`.
    """
    log.info(
        "data: worker %s: %d (data.workers %s; cores: %d, ranks on this node: %d%s)%s",
        *("processes" if processes else "threads", workers or worker_count(wanted), wanted),
        *(cores(), get_local_rank_size(), ", each bound to its own" if is_bound() else "", more),
    )


def worker_count(wanted: Union[int, str]) -> int:
    """`auto`: this rank's part of the cores; a number: at most as many as there are cores.

    The cores are divided by the ranks of the node, unless msrun has bound each rank to its own
    part of them. A container's CPU quota is for all its ranks together.
    """
    if isinstance(wanted, int):
        return min(wanted, cores())
    ranks = get_local_rank_size()
    own = min(cores(), read_cpu_quota() // ranks) if is_bound() else cores() // ranks
    return max(1, int(own))


def batches_ahead(wanted: Union[int, str], size: int, besides: int, total: float = math.inf) -> int:
    """`auto`: as many as a part of the free memory holds, within limits.

    Of `total` batches of `size` bytes MindData holds `besides` more. Raises ValueError where all
    that is more than there is.
    """
    free = free_memory() / get_local_rank_size()
    if isinstance(wanted, int):
        ahead = wanted
    else:
        ahead = int(min(MOST, max(FEWEST, PART * free // size - besides)))
    held = min(ahead + besides, total)
    if held * size > free:
        raise ValueError(
            f"data.prefetch {wanted}: {held} batches of {size / 1e6:.0f} MB are more "
            f"than the {free / 1e6:.0f} MB that are free for each rank of this node; "
            "lower it, or data.batch and eval.batch"
        )
    return int(min(ahead, total))


def cores() -> int:
    """The cores that this process may use, by its affinity and its container's CPU quota."""
    return int(min(len(os.sched_getaffinity(0)), max(1, read_cpu_quota())))


def read_cpu_quota() -> float:
    """The CPU quota of the container in whole cores; infinite if it has none."""
    quota = math.inf
    # The second version of control groups, and the first.
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        limit = numbers(files)
        if limit and limit[0] > 0:
            quota = min(quota, round(limit[0] / limit[1]))
    return quota


def free_memory() -> float:
    """Bytes. What a container has in use counts as free: most of that is cached files."""
    limits = numbers(["memory.max"]) + numbers(["memory/memory.limit_in_bytes"])
    return min([psutil.virtual_memory().available, *limits])


def numbers(files: Sequence[str]) -> list[float]:
    """What files of the container's limits say; empty where there is no such file or no limit."""
    try:
        return [float(word) for file in files for word in (CONTAINER / file).read_text().split()]
    except (OSError, ValueError):  # ValueError: "max"
        return []
