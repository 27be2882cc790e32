"""User errors of whole commands: one line on stderr, exit status 2.

tests/test_newcomer_errors.py has more, which it runs in its own process.
"""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import copy_scripts, run_script
from utils.train import memory
from utils.weights.checkpoint_file import read


@pytest.mark.slow
def test_more_devices_than_batches_are_reported(tiny_args, tmp_path):
    out = [f"--run.out={tmp_path / 'run'}", "--data.batch=20"]
    completed = run_script("scripts/run_distribute_train.sh", "tsm", "2", *tiny_args[1:], *out)
    assert completed.returncode == 2
    assert "24 samples do not fill one batch of 20 on each of 2 ranks" in completed.stderr


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with only the scripts, and an environment whose Python fails."""
    monkeypatch.delenv("ZOO_VENV", raising=False)
    copy_scripts(tmp_path, "echo 'ERROR: No matching distribution found for mindspore'\nexit 1")
    return tmp_path


def run_quickstart(checkout: Path, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["/bin/bash", str(checkout / "scripts" / "quickstart.sh")],
        capture_output=True, text=True, timeout=600, env={**os.environ, **variables},
    )  # fmt: skip


def test_a_failed_installation_is_reported(checkout):
    completed = run_quickstart(checkout)
    assert completed.returncode == 2
    *_, reason, advice = completed.stderr.splitlines()
    assert reason.startswith("ERROR: No matching distribution")
    assert advice.endswith("(no network? is the disk full?). Run the same command again.")


def test_a_wrong_python_is_reported(checkout):
    shutil.rmtree(checkout / ".venv")
    completed = run_quickstart(checkout, ZOO_PYTHON="/bin/false")
    assert completed.returncode == 2
    assert "ZOO_PYTHON=/bin/false is not a Python 3.10 to 3.12 with the venv" in completed.stderr
    (checkout / "bin").mkdir()
    for name in ("dirname", "cat", "cksum"):
        (checkout / "bin" / name).symlink_to(shutil.which(name))
    completed = run_quickstart(checkout, PATH=str(checkout / "bin"), ZOO_PYTHON="")
    assert completed.returncode == 2
    assert "no fitting Python: MindSpore needs Python 3.10 to 3.12" in completed.stderr


@pytest.mark.parametrize(
    "script", ["run_standalone_train.sh", "run_distribute_train.sh", "run_eval.sh"]
)
def test_launch_scripts_print_their_usage_and_reject_unknown_networks(script):
    completed = run_script(f"scripts/{script}")
    assert completed.returncode == 2
    assert completed.stderr.startswith("usage: ")
    completed = run_script(f"scripts/{script}", "tms", "2", "x.yaml", "y")
    assert completed.returncode == 2
    assert "no network named tms; there are: " in completed.stderr


def test_a_batch_that_does_not_fit_into_memory_is_refused_before_compiling(
    run_here, monkeypatch, tiny_args, tmp_path
):
    monkeypatch.setattr(memory, "read_free_memory", lambda: 0.1e9)
    completed = run_here("tsm/train.py", *tiny_args, f"--run.out={tmp_path}")
    assert completed.returncode == 2
    line = completed.stderr.splitlines()[-1]
    assert line.startswith("error: data.batch 4: a training step needs about ")
    assert line.endswith("take smaller crops, fewer frames or a smaller model")
    assert "compiling the graph" not in completed.stderr


def test_a_nonfinite_loss_stops_the_run(tiny_args, tmp_path):
    arguments = [*tiny_args, f"--run.out={tmp_path / 'run'}", "--train.clip_norm=0"]
    arguments += ["--train.lr=1e38", "--run.max_overflows=3", "--train.epochs=4"]
    completed = run_script("tsm/train.py", *arguments, "--run.save_steps=1")
    assert completed.returncode == 2
    message = completed.stderr.strip().splitlines()[-1]
    assert "3 updates in a row were not finite" in message
    assert "the last checkpoint is intact" in message
    files = list(tmp_path.glob("run/*.ckpt"))
    assert files
    assert all(np.isfinite(array).all() for file in files for array in read(file).values())
