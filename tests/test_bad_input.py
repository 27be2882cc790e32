"""Mistakes a user makes, by whole commands: one clear line, exit status 2.

tests/test_newcomer_errors.py has the list of them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from tests.helpers import run_script
from utils.config import ROOT
from utils.weights.checkpoint import read, save
from utils.weights.model_checksum import append_checksum


def one_line(done, *words: str) -> None:
    """The run failed as a user's mistake, and its last line says which."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    for word in words:
        assert word in last, last


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
    done = run_script("tsm/train.py", *tiny_args, f"--run.out={tmp_path / 'run'}", argument)
    one_line(done, *words)
    assert not list(tmp_path.glob("run/*.ckpt"))


@pytest.mark.slow
def test_more_devices_than_batches_are_reported(tiny_args, tmp_path):
    out = [f"--run.out={tmp_path / 'run'}", "--data.batch=20"]
    done = run_script("scripts/run_distribute_train.sh", "tsm", "2", *tiny_args[1:], *out)
    assert done.returncode == 2
    assert "24 samples do not fill one batch of 20 on each of 2 ranks" in done.stderr


def test_a_python_without_mindspore_is_reported():
    """As in a shell where nobody has activated the environment."""
    command = [sys.executable, "-S", str(ROOT / "tsm" / "train.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    one_line(done, "has no MindSpore: source .venv/bin/activate")


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A checkout that has only its scripts, and an environment whose Python fails."""
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


def quickstart(checkout: Path, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["/bin/bash", str(checkout / "scripts" / "quickstart.sh")],
        capture_output=True, text=True, timeout=60, env={**os.environ, **variables},
    )  # fmt: skip


def test_an_installation_without_a_network_is_reported(scripts):
    done = quickstart(scripts)
    assert done.returncode == 2
    *_, reason, advice = done.stderr.splitlines()
    assert reason.startswith("ERROR: No matching distribution")
    assert advice.endswith("(no network? no room on the disk?). Run the same command again.")


def test_a_wrong_python_is_reported(scripts):
    shutil.rmtree(scripts / ".venv")
    done = quickstart(scripts, ZOO_PYTHON="/bin/false")
    assert done.returncode == 2
    assert "ZOO_PYTHON=/bin/false is not a Python 3.9 to 3.12 with the venv" in done.stderr
    (scripts / "bin").mkdir()
    for name in ("dirname", "cat", "cksum"):
        (scripts / "bin" / name).symlink_to(shutil.which(name))
    done = quickstart(scripts, PATH=str(scripts / "bin"), ZOO_PYTHON="")
    assert done.returncode == 2
    assert "no fitting Python: MindSpore needs Python 3.9 to 3.12" in done.stderr


def test_no_arguments_show_the_usage():
    for script in ("tsm/train.py", "tsm/eval.py", "tsm/export.py", "scripts/convert_checkpoint.py"):
        done = run_script(script)
        assert done.returncode == 2
        assert f"python {script}" in done.stderr
    assert run_script("tsm/train.py", "--help").returncode == 0


@pytest.mark.parametrize(
    "script", ["run_standalone_train.sh", "run_distribute_train.sh", "run_eval.sh"]
)
def test_launch_scripts_show_their_usage_and_know_the_networks(script):
    done = run_script(f"scripts/{script}")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
    done = run_script(f"scripts/{script}", "tms", "2", "x.yaml", "y")
    assert done.returncode == 2
    assert "no network named tms; there are: " in done.stderr


def test_an_unknown_checkpoint_is_reported(tiny_args, tmp_path):
    alien = tmp_path / "alien.ckpt"
    save(alien, {"encoder.weight": Tensor(np.ones(3, np.float32))})
    one_line(
        run_script("tsm/eval.py", *tiny_args, f"--checkpoint_path={alien}"), "missing", "unknown"
    )


@pytest.mark.parametrize("suffix", ["mindir", "onnx"])
def test_a_damaged_export_is_reported(tiny_args, tmp_path, suffix):
    file = tmp_path / f"net.{suffix}"
    file.write_bytes(b"sound")
    append_checksum(file)
    file.write_bytes(file.read_bytes().replace(b"sound", b"Sound"))
    done = run_script("tsm/eval.py", *tiny_args, f"--checkpoint_path={file}")
    one_line(done, str(file), "its checksum differs from its content; copy or export it again")


def test_another_class_count_needs_a_new_head(tiny_args, tiny_ckpt, tmp_path):
    arguments = [*tiny_args, "--model.num_classes=9", f"--train.pretrained={tiny_ckpt}"]
    arguments += [f"--run.out={tmp_path / 'run'}", "--train.epochs=2"]
    done = run_script("tsm/train.py", *arguments)
    one_line(done, "base_model.fc.weight is [8, 64] instead of [9, 64]", "train.new_head=true")
    done = run_script("tsm/train.py", *arguments, "--train.new_head=true")
    assert done.returncode == 0, done.stderr


def test_a_loss_that_is_not_finite_stops_the_run(tiny_args, tmp_path):
    arguments = [*tiny_args, f"--run.out={tmp_path / 'run'}", "--train.clip_norm=0"]
    arguments += ["--train.lr=1e38", "--run.max_overflows=3", "--train.epochs=4"]
    done = run_script("tsm/train.py", *arguments, "--run.save_steps=1")
    one_line(done, "3 updates in a row were not finite", "the last checkpoint is intact")
    files = list(tmp_path.glob("run/*.ckpt"))
    assert files
    assert all(np.isfinite(each).all() for file in files for each in read(file).values())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_reported(tiny_args, tmp_path):
    tmp_path.chmod(0o500)
    one_line(
        run_script("tsm/train.py", *tiny_args, f"--run.out={tmp_path / 'run'}"), "cannot write"
    )


def test_a_folder_name_with_spaces_is_no_mistake(data_root, tiny_args, tmp_path):
    root = tmp_path / "my videos and ümläuts"
    shutil.copytree(data_root, root)
    arguments = [a for a in tiny_args if not a.startswith("--data.root")]
    arguments += [f"--data.root={root}", f"--run.out={tmp_path / 'my run'}"]
    assert run_script("tsm/train.py", *arguments).returncode == 0
