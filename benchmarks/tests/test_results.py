"""Benchmark results: reading an earlier result, and comparing two results."""

import json
import platform

import pytest

from benchmarks import results
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


def test_numbers_of_both_results_are_compared():
    now = {**BEFORE, "train_clips_per_second": 30.0}
    del now["gone"]
    ratios = results.compute_ratios(BEFORE, {**now, "new": 3, "processes": True})
    assert ratios == {"train_clips_per_second": 1.5}
    lines = list(results.format_comparison(BEFORE, now))
    assert lines[2:] == ["| train_clips_per_second | 20 | 30 | 1.500 |"]


def test_differences_of_machine_and_settings_are_listed():
    now = {**BEFORE, "batch": 8, "machine": {**MACHINE, "mindspore": "2.11.0"}}
    assert list(results.list_differences(BEFORE, BEFORE)) == []
    assert list(results.list_differences(BEFORE, now)) == [
        "batch was 4, now it is 8",
        "mindspore was 2.10.0, now it is 2.11.0",
    ]
    old = {key: value for key, value in BEFORE.items() if key != "machine"}
    assert "processor was unknown, now it is A" in results.list_differences(old, BEFORE)


def test_a_result_is_the_last_line_of_its_file(tmp_path):
    path = tmp_path / "step.json"
    path.write_text(f"| a table |\n{json.dumps(BEFORE)}\n\n")
    assert results.read_result(path, "step", "tsm_smoke") == BEFORE


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"\xff",
        b"",
        b"12:00 a log\n",
        b'["benchmark", "config"]',
        b'{"top1": 90.0}',
        b'{"benchmark": "data", "config": "tsm_smoke"}',
        b'{"benchmark": "step", "config": "x3d_smoke"}',
    ],
)
def test_a_file_without_the_expected_result_is_an_error(content, tmp_path):
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)):
        results.read_result(path, "step", "tsm_smoke")


def test_a_processor_without_a_name_has_its_architecture(tmp_path, monkeypatch):
    for text, name in [
        ("processor\t: 0\nmodel name\t: Fast 9000\nmodel name\t: Slow\n", "Fast 9000"),
        ("processor\t: 0\nCPU part\t: 0xd01\n", platform.machine()),
    ]:
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(results, "CPU_INFO", tmp_path / "cpuinfo")
        assert results.read_processor() == name
    assert results.describe_machine("CPU")["cores"] >= 1


def test_a_measured_command_computes_with_the_threads_of_the_user(monkeypatch, tmp_path):
    """Importing MindSpore sets OMP_NUM_THREADS to 1 where os.environ does not show it."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "threads.py"
    script.write_text("import json, os; print(json.dumps(os.environ.get('OMP_NUM_THREADS')))")
    assert run_command([str(script)], lambda _: None) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert run_command([str(script)], lambda _: None) == "3", "the user's"
