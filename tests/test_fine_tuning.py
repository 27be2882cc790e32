"""The settings for fine-tuning in whole trainings: docs/fine_tuning.md."""

import json
from pathlib import Path

import pytest

from tests.helpers import (
    assert_same_weights,
    read_result,
    read_weights,
    run_json,
    run_script,
    run_with_kills,
)

SETTINGS = [
    "--train.freeze=backbone", "--train.ema_decay=0.5",
    "--train.class_weights=[1,2,1,2,1,2,1,2]", "--run.eval_every=1",
    "--run.keep_best=loss",
]  # fmt: skip


def read_validations(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if "videos" in line]


def drop_seconds(line: dict) -> dict:
    return {key: value for key, value in line.items() if key != "seconds"}


def test_a_fine_tuned_network_keeps_its_best_validation(run_here, tiny_args, tmp_path):
    """An evaluation of best.ckpt, with the views of the validation, gives the same metrics.

    Of few videos it is the last validation.
    """
    run = tmp_path / "run"
    arguments = [*tiny_args, *SETTINGS, "--data.val_list=odd.txt", f"--run.out={run}"]
    done = run_here("tsm/train.py", *arguments)
    result = read_result(done)
    assert "train.freeze backbone: 2 of 62 weights" in done.stderr
    lines = read_validations(run)
    assert [line["epoch"] for line in lines] == [1, 2]
    for line in lines:
        assert (line["videos"], line["views"], line["weights"]) == (7, "1x1", "averaged")
    assert result["steps"] == 12
    assert (result["validation_loss"], result["validation_top1"]) == (
        lines[1]["loss"], lines[1]["top1"],
    )  # fmt: skip
    best = lines[-1]
    assert result["best_epoch"] == best["epoch"]
    assert json.loads((run / "best.json").read_text())["validation"] == best
    before = read_weights(run / "epoch_001.ckpt")
    frozen = [name for name in before if not name.startswith("base_model.fc.")]
    for name in ("epoch_002.ckpt", "best.ckpt"):
        after = read_weights(run / name)
        assert all((after[key] == before[key]).all() for key in frozen)

    more = ["--data.test_list=odd.txt", "--eval.clips=1", "--eval.crops=1"]
    command = [*tiny_args, *more, "--checkpoint_path", run / "best.ckpt"]
    metrics = read_result(run_here("tsm/eval.py", *command))
    assert metrics["loss"] == pytest.approx(best["loss"], abs=2e-5)
    for name in ("top1", "top5", "videos", "views"):
        assert metrics[name] == best[name], name
    both = json.loads((run / "best.json").read_text())
    assert both == {**both, **metrics, "validation": best, "keep_best": "loss"}


def assert_same_run(whole: Path, killed: Path) -> None:
    for file in whole.glob("*.ckpt"):
        assert_same_weights(file, killed / file.name)
    values = [json.loads((run / "best.json").read_text()) for run in (whole, killed)]
    assert drop_seconds(values[0]["validation"]) == drop_seconds(values[1]["validation"])


@pytest.mark.slow
def test_a_killed_run_keeps_the_same_best_weights(tiny_args, tmp_path):
    """Validations between two saves are repeated, and those that are in the log are not."""
    arguments = [*tiny_args, *SETTINGS, "--train.epochs=6", "--run.save_every=2"]
    arguments += ["--run.save_steps=3", "--run.patience=5"]
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    expected = run_json("tsm/train.py", *arguments, f"--run.out={whole}")
    print(run_with_kills("tsm/train.py", arguments=arguments, out=killed, times=4, seed=1))
    result = run_json("tsm/train.py", *arguments, f"--run.out={killed}")
    assert_same_run(whole, killed)
    for name in ("best_epoch", "validation_loss", "validation_top1"):
        assert result[name] == expected[name]


@pytest.mark.slow
def test_patience_ends_two_ranks_together(pair_args, tmp_path):
    """With rate 0 no validation improves on the first. Two ranks find the loss of one."""
    settings = ["--train.epochs=9", "--train.lr=1e-30", "--run.eval_every=1", "--run.patience=2"]
    settings += ["--run.save_every=9", "--data.test_list=odd.txt"]
    pair = tmp_path / "pair"
    done = run_script("scripts/launch.py", "2", "tsm/train.py", *pair_args, *settings,
                      f"--run.out={pair}")  # fmt: skip
    result = read_result(done)
    assert (result["epochs"], result["best_epoch"]) == (3.0, 1)
    assert done.stderr.count("run.patience: no validation was better than epoch 1") == 1
    assert (pair / "epoch_003.ckpt").is_file()
    one = [*pair_args, *settings, f"--run.out={tmp_path / 'one'}"]
    other = run_json("tsm/train.py", *one)
    assert other["validation_loss"] == pytest.approx(result["validation_loss"], abs=2e-5)
    again = run_script("tsm/train.py", *one)
    assert read_result(again)["steps"] == other["steps"], "the same command does not go on"
