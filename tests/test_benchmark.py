"""benchmarks/benchmark.py: memory, comparison with earlier results and PyTorch."""

import json
import sys

import pytest

from benchmarks import benchmark
from benchmarks.torch import baseline
from tests.helpers import assert_one_line_error, find_smoke_yaml, run_json, run_script
from tests.numbered_videos import write_numbered_video
from utils.settings import Run

BENCHMARK = "benchmarks/benchmark.py"


@pytest.mark.slow
def test_memory_is_measured_for_each_graph_and_compared_with_an_earlier_result(tiny_args, tmp_path):
    earlier_file = tmp_path / "before.json"
    out = tmp_path / "new" / "now.json"
    earlier = {"benchmark": "memory", "config": "tsm_smoke", "batch": 128, "machine": {}}
    earlier_file.write_text(json.dumps({**earlier, "train_peak_gb": 1e3}))
    files = [f"--against={earlier_file}", f"--out={out}"]
    large = ["--data.batch=128", "--data.crop=64", "--data.resize=64"]
    result = run_json(BENCHMARK, "memory", *tiny_args, *large, *files)
    assert result == json.loads(out.read_text())
    assert set(result["ratios"]) == {"train_peak_gb"}
    ratio = result["ratios"]["train_peak_gb"]
    assert ratio == pytest.approx(result["train_peak_gb"] / 1e3, rel=0.01, abs=1e-3)
    train, evaluation = (result[f"{part}_peak_gb"] for part in benchmark.PARTS)
    assert train > result["train_compile_peak_gb"] > result["eval_compile_peak_gb"] > 0.2
    assert train > evaluation > result["eval_compile_peak_gb"]


def test_an_error_in_a_measuring_process_is_printed_once(tiny_args):
    completed = run_script(BENCHMARK, "memory", *tiny_args, "--run.device=Ascend")
    assert_one_line_error(completed, "run.device")


def test_missing_pytorch_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # hides an installed one
    with pytest.raises(ValueError, match="--torch: .*pip install torch"):
        baseline.check_torch("step", Run(device="CPU"))


@pytest.mark.slow  # torch.compile runs for a minute
def test_pytorch_is_measured_in_turns_with_mindspore(tiny_args):
    pytest.importorskip("torch")
    result = run_json(BENCHMARK, "step", *tiny_args, "--repeats=1", "--torch")
    for name in ("train", "eval"):
        keys = ("", "torch_", "torch_channels_last_", "torch_compiled_")
        mindspore, *torch = (result[f"{key}{name}_clips_per_second"] for key in keys)
        assert result[f"{name}_over_torch"] == pytest.approx(mindspore / max(torch), rel=0.05)
    assert result["torch_train_peak_gb"] > 0.1
    assert result["torch_channels_last_train_peak_gb"] > 0.1
    assert result["torch_compiled_train_peak_gb"] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("network", ["tsm", "x3d"])
def test_whole_evaluations_are_compared_with_pytorch(network, tmp_path):
    """The width is a multiple of 32: of others decord's get_batch may refuse the frames."""
    pytest.importorskip("torch")
    for name in ("a", "b", "c"):
        write_numbered_video(tmp_path / f"{name}.mp4", frames=40, width=128, height=96, rate=25)
    (tmp_path / "test.txt").write_text("a.mp4 0\nb.mp4 1\nc.mp4 0\n")
    arguments = ["--config_path", find_smoke_yaml(network), "--data.batch=2", "--eval.batch=1"]
    result = run_json(BENCHMARK, "eval", *arguments, f"--data.root={tmp_path}", "--torch")
    assert result["videos"] == 2
    assert result["videos_over_torch"] > 0
