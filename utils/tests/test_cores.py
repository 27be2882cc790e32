"""Processor cores: counted as by MindSpore, enough dispatch threads, binding by msrun."""

import os
import shutil
import subprocess
import sys

import pytest

from utils import cores
from utils.files import ROOT

LAST = max(os.sched_getaffinity(0))
# As a script: the cores that our and the C++ library count, and whether the rank is bound.
SCRIPT = """
import ctypes
from utils import cores

library = ctypes.CDLL("libstdc++.so.6")
count = getattr(library, "_ZNSt6thread20hardware_concurrencyEv")
print(cores.count_cores(), count(), cores.is_bound())
"""


@pytest.mark.skipif(not shutil.which("taskset"), reason="no taskset")
@pytest.mark.parametrize(
    ("affinity", "launcher_cores", "bound"),
    [
        (cores.list_affinity(), cores.list_affinity(), False),  # msrun did not bind it
        (str(LAST), None, False),
        (str(LAST), f"{LAST},{LAST + 1}", True),
    ],
)
def test_cores_are_counted_as_by_mindspore_and_a_bound_rank_is_recognized(
    affinity, launcher_cores, bound
):
    """In a process with these cores only; it is bound if they are not those of the launcher."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    if launcher_cores:
        environ[cores.LAUNCHER_CORES] = launcher_cores
    command = ["taskset", "-c", affinity, sys.executable, "-c", SCRIPT]
    output = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    ours, theirs, is_bound = output.stdout.split()
    assert ours == theirs
    assert is_bound == str(bound)


def test_dispatch_threads_are_requested_only_if_mindspores_own_are_too_few():
    """MindSpore's own number is floor(0.18 x cores); a graph with a branch needs two."""
    for count in range(1, 200):
        requested = cores.choose_dispatch_threads(count)
        assert (requested or int(0.18 * count)) >= 2
        assert bool(requested) == (int(0.18 * count) < 2)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 6),
        ({"cpu.max": "max 100000"}, 6),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 6),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_usable_cores_are_limited_by_the_container(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(6))
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    assert cores.count_usable_cores() == expected
