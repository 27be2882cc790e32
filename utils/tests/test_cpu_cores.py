"""Processor cores: counted as by MindSpore, enough dispatch threads, binding by msrun."""

import os
import shutil
import subprocess
import sys

import pytest

from utils import cpu_cores
from utils.files import ROOT

LAST = max(os.sched_getaffinity(0))
# As a script: the cores that cpu_cores and the C++ library count, and whether the rank is bound.
SCRIPT = """
import ctypes
from utils import cpu_cores

library = ctypes.CDLL("libstdc++.so.6")
count = getattr(library, "_ZNSt6thread20hardware_concurrencyEv")
print(cpu_cores.count_cores(), count(), cpu_cores.is_bound())
"""


@pytest.mark.skipif(not shutil.which("taskset"), reason="no taskset")
@pytest.mark.parametrize(
    ("cores", "launcher_cores", "bound"),
    [
        (cpu_cores.list_affinity(), cpu_cores.list_affinity(), False),  # msrun did not bind it
        (str(LAST), None, False),
        (str(LAST), f"{LAST},{LAST + 1}", True),
    ],
)
def test_cores_are_counted_as_by_mindspore_and_a_bound_rank_is_recognized(
    cores, launcher_cores, bound
):
    """In a process with these cores only; it is bound if they are not those of the launcher."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    if launcher_cores:
        environ[cpu_cores.LAUNCHER_CORES] = launcher_cores
    command = ["taskset", "-c", cores, sys.executable, "-c", SCRIPT]
    output = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    ours, theirs, is_bound = output.stdout.split()
    assert ours == theirs
    assert is_bound == str(bound)


def test_dispatch_threads_are_requested_only_if_mindspores_own_are_too_few():
    """MindSpore's own number is floor(0.18 x cores); a graph with a branch needs two."""
    for cores in range(1, 200):
        requested = cpu_cores.choose_dispatch_threads("Ascend", cores)
        assert (requested or int(0.18 * cores)) >= 2
        assert bool(requested) == (int(0.18 * cores) < 2)
        assert cpu_cores.choose_dispatch_threads("CPU", cores) == 0
