"""Processor cores: counted as by MindSpore, enough dispatch threads, binding by msrun."""

import ctypes
import os
import shutil
import subprocess
import sys

import pytest

from utils import cpu_cores
from utils.config import ROOT

LAST = max(os.sched_getaffinity(0))
# As a script: the cores that cpu_cores and the C++ library count, and whether the rank is bound.
SCRIPT = """
import ctypes
from utils import cpu_cores

library = ctypes.CDLL("libstdc++.so.6")
count = getattr(library, "_ZNSt6thread20hardware_concurrencyEv")
print(cpu_cores.count_cores(), count(), cpu_cores.is_bound())
"""


def run_on(cores: str, **variables: str) -> list[str]:
    """What the script prints, in a process that may use these cores only."""
    if not shutil.which("taskset"):
        pytest.skip("no taskset")
    command = ["taskset", "-c", cores, sys.executable, "-c", SCRIPT]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()


def test_cores_are_counted_as_mindspore_counts_them():
    try:
        ctypes.CDLL("libstdc++.so.6")
    except OSError:
        pytest.skip("no C++ library")
    for cores in (cpu_cores.list_affinity(), str(LAST)):
        ours, theirs, _ = run_on(cores)
        assert ours == theirs


def test_dispatch_threads_are_requested_only_if_mindspores_own_are_too_few():
    """MindSpore's own number is floor(0.18 x cores); a graph with a branch needs two."""
    for cores in range(1, 200):
        requested = cpu_cores.choose_dispatch_threads("Ascend", cores)
        assert (requested or int(0.18 * cores)) >= 2
        assert bool(requested) == (int(0.18 * cores) < 2)
        assert cpu_cores.choose_dispatch_threads("CPU", cores) == 0


def test_a_rank_is_bound_if_its_cores_are_not_those_of_the_launcher():
    everywhere = {cpu_cores.LAUNCHER_CORES: cpu_cores.list_affinity()}
    assert run_on(cpu_cores.list_affinity(), **everywhere)[2] == "False", "msrun did not bind it"
    assert run_on(str(LAST))[2] == "False", "msrun did not bind it"
    assert run_on(str(LAST), **{cpu_cores.LAUNCHER_CORES: f"{LAST},{LAST + 1}"})[2] == "True"
