"""Untrusted .pth and .safetensors files are read or refused with little work and memory."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.torch_files import COSTLY, MUTATED
from utils.files import ROOT
from utils.weights.torch_reader import TorchFileError, load

CALLS = 100  # of functions, for each byte of the file; the most is 32
BYTES = 500_000_000
pytestmark = pytest.mark.timeout(600)  # a stop against hangs
# Prints for every file the calls of functions and the result of the reader, then the peak memory of
# the process: getrusage would include that of the parent. The limit is a stop against hangs.
MEASURE = """
import itertools, json, resource, sys
from utils.weights import torch_reader
resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
for path in sys.argv[1:]:
    calls = itertools.count()
    answer = ""
    sys.setprofile(lambda *event: next(calls))
    try:
        torch_reader.load(path)
    except torch_reader.TorchFileError as error:
        answer = str(error)
    sys.setprofile(None)
    print(json.dumps([path, next(calls), answer]))
with open("/proc/self/status") as status:
    print(1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's VmHWM")
def test_a_small_file_never_needs_much_work_or_memory(tmp_path):
    for make in COSTLY:
        (tmp_path / make.__name__).write_bytes(make())
    command = [sys.executable, "-c", MEASURE, *sorted(tmp_path.iterdir())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    *lines, memory = map(json.loads, done.stdout.splitlines())
    assert memory < BYTES
    for path, calls, answer in lines:
        assert calls < CALLS * Path(path).stat().st_size + 1e5, path
        if Path(path).name in ("make_repeated_rows", "make_keys_of_one_hash"):
            assert not answer
        else:
            assert answer.startswith(f"{path}: ")
        assert answer.isprintable()
        assert len(answer) < 1000
    assert len(lines) == len(COSTLY)


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
