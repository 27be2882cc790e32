"""Benchmark results: reading an earlier result, and comparing two benchmark."""

import json
import re

import pytest

from benchmarks import benchmark
from scripts.finetuning.own_commands import run_command

MACHINE = {"processor": "A", "cores": 2, "device": "CPU", "mindspore": "2.10.0"}
BEFORE = {
    "benchmark": "step",
    "config": "tsm_smoke",
    "batch": 4,
    "clip": [8, 3, 64, 64],
    "train_clips_per_second": 20.0,
    "peak": 0.0,
    "gone": 1.0,
    "machine": MACHINE,
}


def test_numbers_of_both_results_are_compared_and_differences_named(capsys):
    now = {**BEFORE, "train_clips_per_second": 30.0, "new": 3, "batch": 8}
    now["machine"] = {**MACHINE, "mindspore": "2.11.0"}
    del now["gone"]
    assert benchmark.compare_results(BEFORE, now) == {"train_clips_per_second": 1.5}
    output = capsys.readouterr()
    assert output.out.splitlines()[2:] == ["| train_clips_per_second | 20 | 30 | 1.500 |"]
    assert re.findall(r"warning: (\w+) was", output.err) == ["batch", "mindspore"]


def test_a_result_is_the_last_line_of_its_file(tmp_path):
    path = tmp_path / "step.json"
    path.write_text(f"| a table |\n{json.dumps(BEFORE)}\n\n")
    assert benchmark.read_result(path, "step", "tsm_smoke") == BEFORE
    with pytest.raises(ValueError, match=str(path)):
        benchmark.read_result(path, "step", "x3d_smoke")


def test_a_measured_command_computes_with_the_threads_of_the_user(monkeypatch, tmp_path):
    """Importing MindSpore sets OMP_NUM_THREADS to 1 where os.environ does not show it."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "threads.py"
    script.write_text("import json, os; print(json.dumps(os.environ.get('OMP_NUM_THREADS')))")
    assert run_command([str(script)], lambda _: None) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert run_command([str(script)], lambda _: None) == "3", "the user's"
