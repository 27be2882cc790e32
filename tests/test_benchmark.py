"""benchmarks/benchmark.py: compile, memory, an earlier result, PyTorch."""

import json

import pytest

from benchmarks import benchmark, measure_networks
from tests.helpers import read_result, run_json, run_script
from tsm.config import Config
from utils.config import ROOT, load_config
from utils.verify.graph_costs import PARTS

BENCHMARK = "benchmarks/benchmark.py"
SMALL = ["--data.batch=2"]  # for the smoke yamls of the other networks
NETWORKS = ("x3d", "mvit_multi", "resnet50")


def test_compile_seconds_are_compared_with_an_earlier_result(tiny_args, tmp_path):
    before, out = tmp_path / "before.json", tmp_path / "new" / "now.json"
    earlier = {"benchmark": "compile", "config": "tsm_smoke", "batch": 4, "machine": {"cores": 99}}
    before.write_text(json.dumps({**earlier, "train_compile_seconds": 1e3}))
    done = run_script(BENCHMARK, "compile", *tiny_args, f"--against={before}", f"--out={out}")
    now = read_result(done)
    assert now == json.loads(out.read_text())
    assert now["train_compile_seconds"] > now["eval_compile_seconds"] > 0
    assert now["against"] == str(before)
    assert set(now["ratios"]) == {"train_compile_seconds"}
    assert 0 < now["ratios"]["train_compile_seconds"] < 0.1
    assert "| train_compile_seconds | 1000 |" in done.stdout
    assert "cores was 99, now it is" in done.stderr
    assert "batch was" not in done.stderr


@pytest.mark.slow
def test_memory_is_measured_for_each_graph(tiny_args):
    large = ["--data.batch=128", "--data.crop=64", "--data.resize=64"]
    result = run_json(BENCHMARK, "memory", *tiny_args, *large)
    peaks = {part: result[f"{part}_peak_gb"] for part in PARTS}
    assert peaks["train"] > peaks["train_compile"] > peaks["eval_compile"] > 0.2
    assert peaks["train"] > peaks["eval"] > peaks["eval_compile"]


@pytest.mark.slow
@pytest.mark.parametrize("network_name", NETWORKS)
@pytest.mark.parametrize("kind", ["compile", "memory"])
def test_compile_and_memory_of_every_network(network_name, kind):
    yaml = ROOT / network_name / "configs" / f"{network_name}_smoke.yaml"
    result = run_json(BENCHMARK, kind, "--config_path", yaml, *SMALL)
    numbers = [value for name, value in result.items() if name.endswith(("seconds", "gb"))]
    assert len(numbers) == {"compile": 2, "memory": 4}[kind]
    assert min(numbers) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["speed"],
            "invalid choice: 'speed' (choose from 'step', 'compile', 'memory', 'data', 'eval')",
        ),
        (
            ["memory", "--part=trian"],
            "--part: invalid choice: 'trian'",
        ),
        (["step", "--against=/no/such/file"], "--against: /no/such/file does not exist"),
    ],
)
def test_a_user_error_is_one_line(arguments, message, tiny_args):
    kind, *given = arguments
    done = run_script(BENCHMARK, kind, *tiny_args, *given)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("step", {"part": "train"}, "--part goes with compile and memory, not with step"),
        ("eval", {"torch": True}, "--torch goes with step, not with eval"),
    ],
)
def test_options_that_exclude_each_other_are_an_error(kind, given, message):
    cfg = load_config(Config, ROOT / "tsm" / "configs" / "tsm_smoke.yaml")
    with pytest.raises(ValueError, match=message):
        benchmark.main("tsm", cfg, kind, **{"torch": False, **given})


def test_the_error_of_a_part_is_printed_once(tiny_args):
    done = run_script(BENCHMARK, "compile", *tiny_args, "--run.device=Ascend")
    assert done.returncode == 2
    assert "run.device: Ascend is not available here" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_missing_pytorch_is_an_error(tiny_args, tmp_path):
    """A `torch` that cannot be found stands in the way of one that is installed."""
    hidden = "import sys\nsys.modules['torch'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    done = run_script(
        BENCHMARK, "step", *tiny_args, "--torch", environment={"PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 2
    assert done.stderr == "error: --torch: PyTorch is not installed here (pip install torch)\n"


def test_pytorch_alternates_with_mindspore(tiny_args):
    pytest.importorskip("torch")
    result = run_json(BENCHMARK, "step", *tiny_args, "--repeats=1", "--torch")
    for name in ("train", "eval"):
        ours, theirs = (result[f"{who}{name}_clips_per_second"] for who in ("", "torch_"))
        assert result[f"{name}_over_torch"] == pytest.approx(ours / theirs, rel=0.05)
    assert result["torch_train_peak_gb"] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("network_name", NETWORKS)
def test_pytorch_alternates_with_every_network(network_name):
    pytest.importorskip("torch")
    yaml = ROOT / network_name / "configs" / f"{network_name}_smoke.yaml"
    result = run_json(BENCHMARK, "step", "--config_path", yaml, *SMALL, "--repeats=1", "--torch")
    assert result["eval_over_torch"] > 0


def test_settings_that_the_twin_does_not_support_are_an_error(tiny_args):
    pytest.importorskip("torch")
    for given, messages in [
        ("--train.ema_decay=0.9", "error: --torch: train.optimizer, train.ema_decay"),
        ("--run.amp=O2", "error: --torch compares float32"),
    ]:
        done = run_script(BENCHMARK, "step", *tiny_args, "--torch", given)
        assert (done.returncode, done.stderr[: len(messages)]) == (2, messages)


def test_the_table_of_networks_has_a_dash_for_what_was_not_measured():
    row = {"config": "tsm_smoke", "batch": 2, "clip": [8, 3, 64, 64], "train_gflops": 1054.47}
    head, _, line = measure_networks.format_rows([row])
    assert line.startswith("| `tsm_smoke` | 2 of 8 x 3 x 64 x 64 | – |")
    assert line.count("|") == head.count("|")
    assert "| 1054 |" in line


def test_the_table_of_networks_names_yamls_of_this_zoo():
    for name in measure_networks.NETWORKS:
        assert len(list(ROOT.glob(f"*/configs/{name}.yaml"))) == 1
    done = run_script("benchmarks/measure_networks.py", "--only=tsm_smoke,nothing")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
