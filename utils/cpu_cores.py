"""How many processor cores a process may use, and what MindSpore needs to train with few.

MindSpore starts floor(0.18 x cores) threads that dispatch kernels, with at most 30 cores counted.
On Ascend it runs a graph with a branch, as every train step is, only if there are at least two of
them: 12 cores. `mindspore.runtime.dispatch_threads_num` sets another number.

Source: `ComputeThreadNums` in MindSpore's runtime; 1, 2, 3 and 5 requested threads were tried in
MindSpore 2.10's simulation of an Ascend on 2 cores: one fails, the others run.
"""

import ctypes
import os

LEAST_CORES = 12  # of a process on Ascend, if it requests no dispatch threads
DISPATCH_THREADS = 5  # MindSpore's own number on 28 cores and more
# Set by scripts/launcher/worker_group.py if it makes msrun bind the ranks.
LAUNCHER_CORES = "ZOO_LAUNCHER_CORES"


def count_cores() -> int:
    """The cores that MindSpore counts: std::thread::hardware_concurrency(). Linux only.

    That is get_nprocs() of the C library: the cores of the machine that are online, whatever the
    affinity and the control group of this process allow. Only glibc 2.34 counts the affinity.
    """
    return ctypes.CDLL(None).get_nprocs()


def choose_dispatch_threads(device: str, cores: int) -> int:
    """The number to pass to `mindspore.runtime.dispatch_threads_num`; 0: leave MindSpore's own."""
    return DISPATCH_THREADS if device == "Ascend" and cores < LEAST_CORES else 0


def list_affinity() -> str:
    """The numbers of the cores on which this process may run, such as `0,1,2,3`."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def is_bound() -> bool:
    """Whether msrun has bound this rank to its own part of the launcher's cores.

    msrun binds nothing if it does not find `taskset` or, as with version 2 of control groups,
    /sys/fs/cgroup/cpuset/cpuset.cpus; so the cores are compared, not only the request.
    """
    return os.environ.get(LAUNCHER_CORES, list_affinity()) != list_affinity()
