"""Untrusted .pth and .safetensors files are read or refused with little work and memory."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.torch_files import COSTLY, MUTATED, make_keys_of_one_hash, make_repeated_rows
from utils.files import ROOT
from utils.weights.torch_reader import TorchFileError, load

CALLS = 100  # of functions, for each byte of the file; the most is 32
BYTES = 500_000_000
pytestmark = pytest.mark.timeout(600)  # a stop against hangs
# Prints the result of the reader, its calls of functions and the peak memory of the process.
# getrusage would include the memory of the parent process. The limit is a stop against hangs.
MEASURE = """
import itertools, resource, sys
from utils.weights import torch_reader
resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
calls = itertools.count()
sys.setprofile(lambda *event: next(calls))
try:
    torch_reader.load(sys.argv[1])
    print("read")
except torch_reader.TorchFileError as error:
    print(error)
sys.setprofile(None)
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(next(calls), 1024 * peak)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's VmHWM")
@pytest.mark.parametrize("make", COSTLY, ids=lambda make: make.__name__)
def test_a_small_file_never_needs_much_work_or_memory(make, tmp_path):
    path = tmp_path / "costly.pth"
    path.write_bytes(make())
    command = [sys.executable, "-c", MEASURE, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    *answer, figures = done.stdout.splitlines()
    assert len(answer) == 1
    assert len(answer[0]) < 1000
    if make in (make_repeated_rows, make_keys_of_one_hash):
        assert answer == ["read"]
    else:
        assert answer[0].startswith(f"{path}: ")
    calls, memory = map(int, figures.split())
    assert calls < CALLS * path.stat().st_size + 1e5
    assert memory < BYTES


def measure_peak_memory() -> int:
    """The peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("make", MUTATED.values(), ids=MUTATED)
@pytest.mark.parametrize(
    "seeds", [range(150), pytest.param(range(150, 3000), marks=pytest.mark.slow)], ids=str
)
def test_mutated_files_are_read_or_refused(make, seeds, seed, tmp_path):
    """The only error is a TorchFileError of one line, which begins with the path of the file."""
    before = measure_peak_memory()
    lines = []
    path = tmp_path / "mutated"
    for number in seeds:
        path.write_bytes(make(seed + number))
        try:
            load(path)
        except TorchFileError as error:
            lines.append(str(error))
    assert lines
    assert all(line.startswith(f"{path}: ") and line.isprintable() for line in lines)
    assert measure_peak_memory() - before < BYTES
