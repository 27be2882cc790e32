"""User errors of whole commands: one line on stderr, exit status 2."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from tests.helpers import run_json, run_script
from utils.config import ROOT
from utils.weights.checkpoint import read, save
from utils.weights.model_checksum import append_checksum


def assert_user_error(completed, *words: str) -> None:
    """Asserts that a command failed with a user error whose message contains `words`."""
    assert completed.returncode == 2, completed.stderr
    assert "Traceback" not in completed.stderr
    message = completed.stderr.strip().splitlines()[-1]
    assert message.startswith("error: ")
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--train.epoch=3", ["unknown setting train.epoch; nearest: epochs"]),
        ("--data.train_list=none.txt", ["none.txt does not exist"]),
        (
            "--data.batch=99",
            ["24 samples do not fill one batch of 99 on each of 1 ranks; lower data.batch"],
        ),
    ],
)
def test_a_wrong_setting_ends_a_command(tiny_args, tmp_path, argument, words):
    completed = run_script("tsm/train.py", *tiny_args, f"--run.out={tmp_path / 'run'}", argument)
    assert_user_error(completed, *words)
    assert not list(tmp_path.glob("run/*.ckpt"))


@pytest.mark.slow
def test_more_devices_than_batches_are_reported(tiny_args, tmp_path):
    out = [f"--run.out={tmp_path / 'run'}", "--data.batch=20"]
    completed = run_script("scripts/run_distribute_train.sh", "tsm", "2", *tiny_args[1:], *out)
    assert completed.returncode == 2
    assert "24 samples do not fill one batch of 20 on each of 2 ranks" in completed.stderr


def test_a_python_without_mindspore_is_reported():
    """A shell without an activated environment has such a Python."""
    command = [sys.executable, "-S", str(ROOT / "tsm" / "train.py"), "--help"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert_user_error(completed, "has no MindSpore: source .venv/bin/activate")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with only the scripts, and an environment whose Python fails."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("requirements.txt", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.delenv("ZOO_VENV", raising=False)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\necho 'ERROR: No matching distribution found for mindspore'\nexit 1\n"
    )
    python.chmod(0o755)
    return tmp_path


def run_quickstart(checkout: Path, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["/bin/bash", str(checkout / "scripts" / "quickstart.sh")],
        capture_output=True, text=True, timeout=60, env={**os.environ, **variables},
    )  # fmt: skip


def test_a_failed_installation_is_reported(checkout):
    completed = run_quickstart(checkout)
    assert completed.returncode == 2
    *_, reason, advice = completed.stderr.splitlines()
    assert reason.startswith("ERROR: No matching distribution")
    assert advice.endswith("(no network? no room on the disk?). Run the same command again.")


def test_a_wrong_python_is_reported(checkout):
    shutil.rmtree(checkout / ".venv")
    completed = run_quickstart(checkout, ZOO_PYTHON="/bin/false")
    assert completed.returncode == 2
    assert "ZOO_PYTHON=/bin/false is not a Python 3.9 to 3.12 with the venv" in completed.stderr
    (checkout / "bin").mkdir()
    for name in ("dirname", "cat", "cksum"):
        (checkout / "bin" / name).symlink_to(shutil.which(name))
    completed = run_quickstart(checkout, PATH=str(checkout / "bin"), ZOO_PYTHON="")
    assert completed.returncode == 2
    assert "no fitting Python: MindSpore needs Python 3.9 to 3.12" in completed.stderr


def test_a_command_without_arguments_prints_its_usage():
    for script in ("tsm/train.py", "tsm/eval.py", "tsm/export.py", "scripts/convert_checkpoint.py"):
        completed = run_script(script)
        assert completed.returncode == 2
        assert f"python {script}" in completed.stderr
    assert run_script("tsm/train.py", "--help").returncode == 0


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


def test_a_checkpoint_of_another_network_is_reported(tiny_args, tmp_path):
    foreign = tmp_path / "foreign.ckpt"
    save(foreign, {"encoder.weight": Tensor(np.ones(3, np.float32))})
    assert_user_error(
        run_script("tsm/eval.py", *tiny_args, f"--checkpoint_path={foreign}"), "missing", "unknown"
    )


@pytest.mark.parametrize("suffix", ["mindir", "onnx"])
def test_a_damaged_export_is_reported(tiny_args, tmp_path, suffix):
    file = tmp_path / f"net.{suffix}"
    file.write_bytes(b"intact")
    append_checksum(file)
    file.write_bytes(file.read_bytes().replace(b"intact", b"Intact"))
    completed = run_script("tsm/eval.py", *tiny_args, f"--checkpoint_path={file}")
    assert_user_error(
        completed, str(file), "its checksum differs from its content; copy or export it again"
    )


def test_another_class_count_needs_a_new_head(tiny_args, tiny_ckpt, tmp_path):
    arguments = [*tiny_args, "--model.num_classes=9", f"--train.pretrained={tiny_ckpt}"]
    arguments += [f"--run.out={tmp_path / 'run'}", "--train.epochs=2"]
    completed = run_script("tsm/train.py", *arguments)
    assert_user_error(
        completed, "base_model.fc.weight is [8, 64] instead of [9, 64]", "train.new_head=true"
    )
    run_json("tsm/train.py", *arguments, "--train.new_head=true")


def test_a_nonfinite_loss_stops_the_run(tiny_args, tmp_path):
    arguments = [*tiny_args, f"--run.out={tmp_path / 'run'}", "--train.clip_norm=0"]
    arguments += ["--train.lr=1e38", "--run.max_overflows=3", "--train.epochs=4"]
    completed = run_script("tsm/train.py", *arguments, "--run.save_steps=1")
    assert_user_error(
        completed, "3 updates in a row were not finite", "the last checkpoint is intact"
    )
    files = list(tmp_path.glob("run/*.ckpt"))
    assert files
    assert all(np.isfinite(array).all() for file in files for array in read(file).values())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_reported(tiny_args, tmp_path):
    tmp_path.chmod(0o500)
    assert_user_error(
        run_script("tsm/train.py", *tiny_args, f"--run.out={tmp_path / 'run'}"), "cannot write"
    )


def test_folder_names_may_have_spaces_and_umlauts(data_root, tiny_args, tmp_path):
    root = tmp_path / "my videos and ümläuts"
    shutil.copytree(data_root, root)
    arguments = [*tiny_args[:2], f"--data.root={root}", *tiny_args[3:]]
    run_json("tsm/train.py", *arguments, f"--run.out={tmp_path / 'my run'}")
