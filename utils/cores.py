"""Processor cores and memory that a process may use, and what MindSpore needs to train with few.

MindSpore starts floor(0.18 x cores) threads that dispatch kernels, with at most 30 cores counted.
On Ascend and GPU it runs a graph with a branch, as every train step is, only if there are at least
two of them: 12 cores. `mindspore.runtime.dispatch_threads_num` sets another number.

Source: `ComputeThreadNums` in MindSpore's runtime; 1, 2, 3 and 5 requested threads were tried in
MindSpore 2.10's simulation of an Ascend on 2 cores: one fails, the others run. Of a GPU, ResNet-50
fails on 2 to 8 cores ("Invalid new ref count"), and runs with 5 threads.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Union

PROCESSORS = ("x86_64", "aarch64")  # of MindSpore's wheels for Linux
LEAST_CORES = 12  # of a process on Ascend or GPU, if it requests no dispatch threads
DISPATCH_THREADS = 5  # MindSpore's own number on 28 cores and more
MAX_WORKERS = 64  # by `auto`: a worker process needs 0.1 to 0.3 GB, and a host may have 192 cores
# Set by scripts/launch.py if it makes msrun bind the ranks.
LAUNCHER_CORES = "ZOO_LAUNCHER_CORES"
CGROUP = Path("/sys/fs/cgroup")  # limits of the container


def list_affinity() -> str:
    """The numbers of the cores on which this process may run, such as `0,1,2,3`."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def is_bound() -> bool:
    """Whether msrun has bound this rank to its own part of the launcher's cores.

    msrun binds nothing if it does not find `taskset` or, as with version 2 of control groups,
    /sys/fs/cgroup/cpuset/cpuset.cpus; so the cores are compared, not only the request.
    """
    return os.environ.get(LAUNCHER_CORES, list_affinity()) != list_affinity()


def count_workers(setting: Union[int, str]) -> int:
    """The number of workers of this rank, for `data.workers`.

    `auto` takes this rank's part of the cores, at most MAX_WORKERS; a number is limited to the
    number of cores. The cores are divided by the ranks of the node, unless msrun has bound each
    rank to its own cores. The CPU quota of a container is for all its ranks together.
    """
    if isinstance(setting, int):
        return min(setting, count_usable_cores())
    ranks = get_local_rank_size()
    cores = count_usable_cores()
    cores = min(cores, read_cpu_quota() // ranks) if is_bound() else cores // ranks
    return max(1, min(int(cores), MAX_WORKERS))


def get_local_rank_size() -> int:
    """The number of ranks on this node."""
    if "MS_WORKER_NUM" not in os.environ:  # not started by msrun or scripts/launch_mpi.py
        return 1
    from mindspore import communication

    return communication.get_local_rank_size()


def count_usable_cores() -> int:
    """The cores that this process may use, by its affinity and its container's CPU quota."""
    return int(min(len(os.sched_getaffinity(0)), max(1, read_cpu_quota())))


def read_cpu_quota() -> float:
    """The CPU quota of the container in whole cores; infinite if it has none."""
    # Control groups version 2, then version 1.
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        limit = read_cgroup_numbers(files)
        if limit and limit[0] > 0:
            return round(limit[0] / limit[1])
    return math.inf


def read_free_memory() -> float:
    """Free bytes. Memory that a container uses counts as free: most of it is cached files."""
    import psutil  # here: scripts/check_env.py runs without packages

    limits = read_cgroup_numbers(["memory.max"])
    limits += read_cgroup_numbers(["memory/memory.limit_in_bytes"])
    return min([psutil.virtual_memory().available, *limits])


def read_cgroup_numbers(files: Sequence[str]) -> list[float]:
    """The numbers in these files of CGROUP; empty if a file is missing or sets no limit ("max")."""
    try:
        return [float(word) for file in files for word in (CGROUP / file).read_text().split()]
    except (OSError, ValueError):  # ValueError: "max"
        return []
