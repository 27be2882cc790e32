"""The commands of the README for TSM, on encoded videos."""

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.helpers import (
    assert_predictions,
    assert_report,
    assert_same_weights,
    find_smoke_yaml,
    read_result,
    read_step,
    run_json,
    start_and_stop,
    start_script,
)


def test_a_training_writes_checkpoint_state_config_and_log(tiny_ckpt):
    folder = tiny_ckpt.parent
    assert tiny_ckpt.name == "epoch_002.ckpt"
    state = json.loads((folder / "state.json").read_text())
    assert (state["epoch"], state["step"], state["checkpoint"]) == (2, 12, "epoch_002.ckpt")
    assert "first_width: 8" in (folder / "config.yaml").read_text()
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12]
    expected = {"epoch", "loss", "top1", "lr", "loss_scale", "clips_per_second", "waiting"}
    assert expected <= set(lines[0])
    assert "compiled in" in (folder / "run.log").read_text()


def test_a_repeated_command_trains_nothing_after_the_last_epoch(tiny_args, tiny_ckpt, run_here):
    completed = run_here("tsm/train.py", *tiny_args, f"--run.out={tiny_ckpt.parent}")
    assert read_result(completed)["checkpoint"] == str(tiny_ckpt)
    assert "nothing left to train" in completed.stderr


def test_evaluation_counts_every_video_once_and_writes_its_result(tiny_args, tiny_ckpt, run_here):
    """With a partial last batch."""
    words = [*tiny_args, "--checkpoint_path", tiny_ckpt, "--eval.batch=3"]
    result = read_result(run_here("tsm/eval.py", *words))
    assert (result["videos"], result["views"], result["unreadable"]) == (8, "2x3", 0)
    assert json.loads(tiny_ckpt.with_suffix(".json").read_text()) == result


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_bits(tiny_args, tmp_path):
    """The run has all kinds of state: averages, sums, dropout, a dynamic loss scale, mixtures."""
    state = ["--train.ema_decay=0.9", "--model.dropout=0.5", "--train.accumulation_steps=4"]
    state += ["--run.seed=3", "--run.amp=O2", "--run.loss_scale=8", "--run.dynamic_loss_scale=true"]
    state += ["--data.mixup=0.2", "--data.cutmix=1", "--data.erase=0.5", "--train.smoothing=0.1"]
    arguments = [*tiny_args, *state, "--run.save_steps=1"]
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    run_json("tsm/train.py", *arguments, f"--run.out={whole}")
    start_and_stop("tsm/train.py", arguments=arguments, out=killed, steps=5, number=signal.SIGKILL)
    assert run_json("tsm/train.py", *arguments, f"--run.out={killed}")["steps"] == 12
    assert_same_weights(whole / "resume.ckpt", killed / "resume.ckpt")
    assert_same_weights(whole / "epoch_002.ckpt", killed / "epoch_002.ckpt")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)]
)
def test_a_stopped_run_saves_and_resumes(number, status, tiny_args, tiny_ckpt, tmp_path):
    out = tmp_path / "run"
    arguments = [*tiny_args, "--run.save_steps=1"]
    stopped = start_and_stop("tsm/train.py", arguments, out=out, steps=4, number=number)
    assert stopped.returncode == status, stopped.errors
    assert "Traceback" not in stopped.errors
    assert "saved; the same command resumes there" in stopped.errors
    assert read_step(out) >= 4
    run_json("tsm/train.py", *arguments, f"--run.out={out}")
    assert_same_weights(tiny_ckpt, out / "epoch_002.ckpt")


VIEWS = ["--data.sampling=dense", "--eval.clips=64", "--eval.crops=10", "--eval.batch=1"]


@pytest.mark.parametrize(
    ("script", "word", "seconds"),
    [
        ("tsm/train.py", "compiling", 0.5),
        ("tsm/eval.py", "evaluating", 0.5),
        pytest.param("tsm/eval.py", "evaluating", 8, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_ends_a_command_at_once(script, word, seconds, tiny_args, tiny_ckpt, tmp_path):
    """`seconds` after stderr has `word`."""
    more = [*VIEWS, "--checkpoint_path", tiny_ckpt]
    if word == "compiling":
        more = [f"--run.out={tmp_path / 'run'}"]
    process = start_script(script, *tiny_args, *more)
    for line in process.stderr:
        if word in line:
            break
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert errors.strip().splitlines()[-1] == "interrupted; nothing was lost"


def test_worker_processes_and_evaluations_change_no_weight(tiny_args, tiny_ckpt, tmp_path):
    """The evaluations during the training are logged."""
    out = tmp_path / "run"
    arguments = ["--data.processes=true", "--data.workers=3", "--run.eval_every=1"]
    run_json("tsm/train.py", *tiny_args, f"--run.out={out}", *arguments)
    assert_same_weights(tiny_ckpt, out / "epoch_002.ckpt")
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if "videos" in line] == [1, 2]


def test_an_unreadable_video_is_replaced_and_reported_once(
    data_root, tiny_args, run_here, tmp_path
):
    root = copy_with_damaged_video(data_root, tmp_path / "data", "train.txt")
    arguments = [*tiny_args[:2], f"--data.root={root}", *tiny_args[3:]]
    stopped = run_here("tsm/train.py", *arguments, f"--run.out={tmp_path / 'a'}")
    assert stopped.returncode == 2
    assert stopped.stderr.count("cannot read") == 1
    assert "data.max_unreadable: 1 of 24 videos could not be read" in stopped.stderr
    arguments += ["--data.max_unreadable=0.1", f"--run.out={tmp_path / 'b'}"]
    allowed = run_here("tsm/train.py", *arguments)
    assert allowed.returncode == 0, allowed.stderr
    assert allowed.stderr.count("cannot read") == 1


def test_an_evaluation_never_replaces_a_video(data_root, tiny_args, tiny_ckpt, run_here, tmp_path):
    root = copy_with_damaged_video(data_root, tmp_path / "data", "test.txt")
    arguments = [*tiny_args[:2], f"--data.root={root}", *tiny_args[3:]]
    arguments += ["--checkpoint_path", tiny_ckpt]
    completed = run_here("tsm/eval.py", *arguments, f"--report={tmp_path / 'report'}")
    result = json.loads(completed.stdout.splitlines()[-1])
    assert completed.returncode == 1
    assert (result["videos"], result["unreadable"]) == (7, 1)
    rows = assert_report(tmp_path / "report", result)
    assert [row["predicted"] == "unreadable" for row in rows] == [True, *[False] * 7]
    assert "0 left" in rows[0]
    assert run_here("tsm/eval.py", *arguments, "--eval.allow_unreadable=true").returncode == 0
    assert_predictions(run_here, tiny_args, tiny_ckpt, rows=rows[1:3], root=root, out=tmp_path)


def copy_with_damaged_video(source: Path, root: Path, name: str) -> Path:
    """Copies a data root, and truncates the first video of a list; returns the copy."""
    shutil.copytree(source, root)
    video = root / (root / name).read_text().split()[0]
    content = video.read_bytes()
    video.write_bytes(content[: len(content) // 3])
    return root


@pytest.mark.parametrize(
    ("network", "reader"), [("tsm", "auto"), pytest.param("x3d", "decord", marks=pytest.mark.slow)]
)
def test_the_benchmark_measures_the_data_pipeline(data_root, network, reader, run_here):
    arguments = ["--config_path", find_smoke_yaml(network), f"--data.root={data_root}"]
    arguments += [f"--data.reader={reader}", "--data.batch=4", "--data.workers=1"]
    arguments += ["--data.processes=false", "--seconds=1"]
    result = read_result(run_here("benchmarks/benchmark.py", "data", *arguments))
    assert result["reader"] == ("pyav" if reader == "auto" else reader)
    assert (result["workers"], result["processes"]) == (1, False)
    assert result["cost_over_bare_decoding"] > 0.5  # the machine may be busy in one measurement
    assert result["bytes_read"] > 1000
