"""Mistakes a user makes: one clear line that names the setting or file, exit status 2."""

import os
import shutil

import numpy as np
import pytest
from mindspore import Tensor

from tests.helpers import call
from utils.checkpoint import save


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
        ("--data.train_list=none.txt", ["none.txt does not exist"]),
        ("--train.lr=fast", ["train.lr must be a number, not 'fast'"]),
        ("--train.epoch=3", ["unknown setting train.epoch; nearest: epochs"]),
        ("--run.device=Ascend", ["run.device: Ascend is not available here"]),
        ("--run.device=GPU", ["run.device: GPU is not available here"]),
        ("--model.arch=resnet19", ["model.arch must be one of resnet18"]),
        ("--model.non_local=true", ["model.non_local is defined for resnet50"]),
        ("--model.num_classes=3", ["label"]),
        ("--data.batch=99", ["data.batch", "24 samples do not fill one batch of 99"]),
        ("--run.all_reduce=[layer9]", ["run.all_reduce", "layer9"]),
        ("--run.out=/proc/none", ["run.out: cannot write /proc/none"]),
        ("--train.pretrained=/none.ckpt", ["/none.ckpt: no such checkpoint"]),
        ("--eval.clips=7", ["eval.clips", "7"]),
        ("--data.reader=vlc", ["data.reader must be one of auto, pyav, decord, opencv"]),
        ("--sedd=3", ["unknown option --sedd"]),
        ("--data.flip", ["--data.flip needs a value"]),
        ("train.lr=3", ["expected --name=value"]),
    ],
)
def test_a_wrong_setting_is_told(tiny, tmp_path, argument, words):
    out = [] if argument.startswith("--run.out") else [f"--run.out={tmp_path / 'run'}"]
    one_line(call("tsm/train.py", *tiny, *out, argument), *words)
    assert not list(tmp_path.glob("run/*.ckpt"))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "is empty"),
        ("videos/train/left_000.mp4 0\nvideos/none.mp4 1\n", "line 2: "),
        ("videos/train/left_000.mp4 8\n", "line 1: label '8' is not an integer from 0 to 7"),
        ("videos/train/left_000.mp4 left\n", "line 1: label 'left'"),
        ("videos/train/left_000.mp4\n", "line 1: "),
    ],
    ids=["empty", "missing-file", "label-range", "label-text", "fields"],
)
def test_a_bad_list_is_told_by_line(drawn, tiny, tmp_path, lines, words):
    name = f"bad_{abs(hash(words))}.txt"
    (drawn / name).write_text(lines)
    done = call("tsm/train.py", *tiny, f"--data.train_list={name}", f"--run.out={tmp_path}")
    one_line(done, name, words)


def test_no_arguments_show_the_usage():
    for script in ("tsm/train.py", "tsm/eval.py", "tsm/export.py", "scripts/convert_checkpoint.py"):
        done = call(script)
        assert done.returncode == 2
        assert f"python {script}" in done.stderr
    assert call("tsm/train.py", "--help").returncode == 0


@pytest.mark.parametrize(
    "script", ["run_standalone_train.sh", "run_distribute_train.sh", "run_eval.sh"]
)
def test_launch_scripts_show_their_usage_and_know_the_networks(script):
    done = call(f"scripts/{script}")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
    done = call(f"scripts/{script}", "tms", "2", "x.yaml", "y")
    assert done.returncode == 2
    assert "no network named tms; there are: " in done.stderr


def test_a_wrong_count_of_devices_is_told():
    done = call("scripts/run_distribute_train.sh", "tsm", "two", "x.yaml")
    assert done.returncode == 2
    assert "DEVICES must be a whole number above 0, not two" in done.stderr


def test_a_checkpoint_of_another_network_is_told(tiny, trained, tmp_path):
    arguments = [*tiny, "--checkpoint_path", trained]
    one_line(call("tsm/eval.py", *arguments, "--model.first_width=16"), "does not fit", "shape")
    one_line(call("tsm/eval.py", *arguments, "--model.arch=resnet34"), "does not fit", "missing")
    alien = tmp_path / "alien.ckpt"
    save(alien, {"encoder.weight": Tensor(np.ones(3, np.float32))})
    one_line(call("tsm/eval.py", *tiny, f"--checkpoint_path={alien}"), "missing", "unknown")


def test_another_class_count_needs_a_new_head(tiny, trained, tmp_path):
    arguments = [*tiny, "--model.num_classes=9", f"--train.pretrained={trained}"]
    arguments += [f"--run.out={tmp_path / 'run'}", "--train.epochs=2"]
    one_line(call("tsm/train.py", *arguments), "base_model.fc.weight is [8, ", "new_head=true")
    done = call("tsm/train.py", *arguments, "--train.new_head=true")
    assert done.returncode == 0, done.stderr


def test_two_runs_do_not_share_a_folder(tiny, trained):
    other = [*tiny, f"--run.out={trained.parent}", "--train.lr=0.5"]
    one_line(call("tsm/train.py", *other), "holds a run with train.lr", "--run.out")


def test_a_loss_that_is_not_finite_stops_the_run(tiny, tmp_path):
    arguments = [*tiny, f"--run.out={tmp_path / 'run'}", "--train.clip_norm=0"]
    arguments += ["--train.lr=1e30", "--run.max_overflows=3", "--train.epochs=4"]
    done = call("tsm/train.py", *arguments)
    one_line(done, "3 updates in a row were not finite", "the last checkpoint is intact")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_told(tiny, tmp_path):
    tmp_path.chmod(0o500)
    one_line(call("tsm/train.py", *tiny, f"--run.out={tmp_path / 'run'}"), "cannot write")


def test_a_folder_name_with_spaces_is_no_mistake(drawn, tiny, tmp_path):
    root = tmp_path / "my videos and ümläuts"
    shutil.copytree(drawn, root)
    arguments = [a for a in tiny if not a.startswith("--data.root")]
    arguments += [f"--data.root={root}", f"--run.out={tmp_path / 'my run'}"]
    assert call("tsm/train.py", *arguments).returncode == 0
