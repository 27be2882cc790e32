"""Untrusted .pth and .safetensors files are read or refused."""

import resource

import pytest

from tests.fuzz.torch_files import MUTATED
from utils.weights.torch_reader import TorchFileError, load

BYTES = 500_000_000
pytestmark = pytest.mark.timeout(600)  # a stop against hangs


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
