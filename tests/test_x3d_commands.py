"""X3D's commands on the drawn videos, and the same run killed."""

import signal
from pathlib import Path

import pytest

from tests.helpers import assert_same, run, start_and_stop
from utils.config import ROOT


@pytest.fixture(scope="module")
def small(drawn) -> list:
    """A network of six blocks on clips of 4 x 32 x 32; six steps an epoch."""
    return [
        "--config_path",
        str(ROOT / "x3d" / "configs" / "x3d_smoke.yaml"),
        f"--data.root={drawn}",
        "--model.depth_factor=0.4",
        "--data.frames=4",
        "--data.scales=[32,36]",
        "--data.crop=32",
        "--data.batch=4",
        "--train.epochs=2",
        "--train.precise_bn=2",
        "--run.save_every=1",
        "--run.log_every=2",
    ]


@pytest.fixture(scope="module")
def trained(small, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trained_x3d") / "run"
    return Path(run("x3d/train.py", *small, f"--run.out={out}")["checkpoint"])


def test_training_and_evaluation(small, trained):
    assert "precise batch norm over 2 batches" in (trained.parent / "run.log").read_text()
    views = ["--eval.clips=2", "--eval.crops=3"]
    result = run("x3d/eval.py", *small, *views, "--checkpoint_path", trained)
    assert (result["videos"], result["views"], result["unreadable"]) == (8, "2x3", 0)


@pytest.mark.slow
def test_kill_9_changes_no_bit(small, trained, tmp_path):
    arguments, broken = [*small, "--run.save_steps=1"], tmp_path / "broken"
    start_and_stop("x3d/train.py", arguments, broken, 8, signal.SIGKILL)
    run("x3d/train.py", *arguments, f"--run.out={broken}")
    assert_same(trained, broken / "epoch_002.ckpt")
