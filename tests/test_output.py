"""What commands print: only lines of the zoo, with the environment of a user.

MindSpore's own lines look like `[WARNING] ANALYZER(18065,7f4da6dc5b80,python):2026-...`.
"""

import re
from pathlib import Path

import pytest

from scripts.data.synthetic.motion_videos import draw_sets
from scripts.data.synthetic.pattern_images import draw_cifar10
from tests.helpers import build_env, find_smoke_yaml, read_result, run_script

LOG_LINE = re.compile(r"\d\d:\d\d:\d\d \S")


def assert_only_own_lines(completed) -> dict:
    """Asserts that a command printed only log lines on stderr, no lines of MindSpore on stdout.

    Returns its result.
    """
    foreign = [line for line in completed.stderr.splitlines() if not LOG_LINE.match(line)]
    foreign += [line for line in completed.stdout.splitlines() if line.startswith("[")]
    assert not foreign, foreign
    return read_result(completed)


def test_mindspore_has_no_warning_about_a_training(tiny_args, tmp_path):
    """MindSpore prints warnings; its kernels of batch norms would give two for each layer."""
    variables = {"GLOG_v": "2"}
    out = f"--run.out={tmp_path}"
    assert_only_own_lines(run_script("tsm/train.py", *tiny_args, out, environment=variables))


def test_a_job_prints_no_lines_about_the_end_of_connections(pair_run):
    assert_only_own_lines(pair_run[0])


@pytest.mark.slow
@pytest.mark.parametrize("network", ["tsm", "x3d", "mvit_multi", "resnet50"])
def test_commands_print_only_own_lines(network, data_root, tmp_path):
    assert "GLOG_v" not in build_env()
    root, batch = build_data(network, data_root, tmp_path)
    arguments = ["--config_path", find_smoke_yaml(network), f"--data.root={root}", batch]
    arguments += ["--train.epochs=1", "--train.warmup_epochs=0"]
    command = [f"{network}/train.py", *arguments, f"--run.out={tmp_path / 'run'}"]
    result = assert_only_own_lines(run_script(*command))
    weights = ["--checkpoint_path", result["checkpoint"]]
    assert_only_own_lines(run_script(f"{network}/eval.py", *arguments, *weights))
    for kind in ("mindir", "onnx"):
        target = ["--format", kind, "--target", tmp_path / f"net.{kind}"]
        command = [f"{network}/export.py", *arguments, *weights, *target]
        assert_only_own_lines(run_script(*command))


def build_data(network: str, data_root: Path, folder: Path) -> tuple[Path, str]:
    """Returns the data root of a network's smoke recipe, and a setting for a small batch."""
    if network == "mvit_multi":
        draw_sets(folder / "sets", train_per_motion=1, test_per_motion=1)
        return folder / "sets", "--data.batch=2"
    if network == "resnet50":
        draw_cifar10(folder / "images", seed=0, distinct=100)
        return folder / "images", "--data.batch=500"
    return data_root, "--data.batch=4"
