"""Damaged MINDIR files are refused in one line, or run, and never crash MindSpore."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.damage import mutate
from tests.helpers import run_script
from tests.toys import TSM, export_toy
from utils.inference import mindir

TRIES = 130


@pytest.fixture(scope="module")
def intact(tmp_path_factory) -> Path:
    """A TSM of width 2 for batches of two normalised clips."""
    toy = ("tsm", {**TSM, "first_width": 2}, (4, 3, 32, 32))
    target = tmp_path_factory.mktemp("intact") / "net"
    return Path(export_toy(toy, target=target, kind="mindir", input="float32")["file"])


@pytest.mark.parametrize(
    ("offset", "count"), [(0, 8), pytest.param(8, TRIES, marks=pytest.mark.slow)]
)
def test_damaged_mindirs_are_refused_in_one_line_or_run(intact, tmp_path, seed, offset, count):
    done = run_script("tests/fuzz/mindirs.py", intact, tmp_path, seed + offset, count)
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr[-2000:])
    lines = map(json.loads, done.stdout.splitlines())
    undamaged, *results = [line for line in lines if "seed" in line]
    assert undamaged == {"seed": None, "scores": 10}
    assert len(results) == count
    for line in results:
        assert line.get("scores", 10) == 10, line
        error = line.get("error", "damaged.mindir")
        assert "damaged.mindir" in error, line
        assert error.isprintable(), line
        assert len(error) < 400, line


def test_the_graph_of_a_damaged_mindir_is_read_or_refused(intact, tmp_path, seed):
    content = intact.read_bytes()
    path = tmp_path / "damaged.mindir"
    for number in range(seed, seed + TRIES):
        path.write_bytes(mutate(content, number))
        try:
            graph = mindir.read_graph(path)
        except ValueError:
            continue
        assert all(isinstance(array, np.ndarray) for array in graph.weights.values())
