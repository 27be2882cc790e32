"""Damaged MINDIR files: one line, or scores; never a crash."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.damage import mutate
from tests.helpers import run_script
from tests.test_export import TSM, export_toy
from utils.export import mindir

TRIES = 130


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A TSM of width 2 for batches of two normalised clips."""
    toy = ("tsm", {**TSM, "first_width": 2}, (4, 3, 32, 32))
    file = export_toy(toy, tmp_path_factory.mktemp("sound") / "net", "mindir", input="float32")
    return Path(file["file"])


@pytest.fixture
def seed(request) -> int:
    return request.config.getoption("--seed", default=0)


def check(sound: Path, folder: Path, first: int, count: int) -> None:
    done = run_script("tests/fuzz/mindirs.py", sound, folder, first, count)
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr[-2000:])
    lines = map(json.loads, done.stdout.splitlines())
    unharmed, *results = [line for line in lines if "seed" in line]
    assert unharmed == {"seed": None, "scores": 10}
    assert len(results) == count
    for line in results:
        assert line.get("scores", 10) == 10, line
        error = line.get("error", "damaged.mindir")
        assert "damaged.mindir" in error, line
        assert error.isprintable(), line
        assert len(error) < 400, line


def test_damaged_mindirs_are_refused_in_one_line_or_run(sound, tmp_path, seed):
    check(sound, tmp_path, seed, 8)


@pytest.mark.slow
def test_many_damaged_mindirs_are_refused_in_one_line_or_run(sound, tmp_path, seed):
    check(sound, tmp_path, seed + 8, TRIES)


def test_the_graph_of_a_damaged_mindir_is_read_or_refused(sound, tmp_path, seed):
    content, path = sound.read_bytes(), tmp_path / "damaged.mindir"
    for each in range(seed, seed + TRIES):
        path.write_bytes(mutate(content, each))
        try:
            graph = mindir.read_graph(path)
        except ValueError:
            continue
        assert all(isinstance(array, np.ndarray) for array in graph.weights.values())
