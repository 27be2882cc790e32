"""Commands of X3D on the synthetic videos; runs on two workers; killed runs."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import (
    assert_close_weights,
    assert_fine_tuning,
    assert_kills_change_no_weight,
    assert_mindir_matches,
    assert_predictions,
    assert_report,
    assert_segments,
    build_dump_env,
    find_smoke_yaml,
    load_smoke_config,
    read_result,
    read_weights,
    run_json,
    run_script,
    save_random_weights,
)


@pytest.fixture(scope="module")
def small(data_root) -> list:
    """A network of six blocks on clips of 4 x 32 x 32; six steps an epoch."""
    arguments = [
        "--config_path",
        str(find_smoke_yaml("x3d")),
        f"--data.root={data_root}",
        "--run.engine=mindspore",
    ]
    arguments += ["--model.depth_factor=0.4", "--data.frames=4", "--data.scales=[32,36]"]
    arguments += ["--data.crop=32", "--data.batch=4", "--train.epochs=2", "--train.precise_bn=2"]
    return [*arguments, "--run.save_every=1", "--run.log_every=2"]


@pytest.fixture(scope="module")
def trained(small, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trained_x3d") / "run"
    arguments = [*small, "--run.eval_every=1", f"--run.out={out}"]
    return Path(run_json("x3d/train.py", *arguments)["checkpoint"])


@pytest.mark.slow
def test_reports_and_predictions_agree_with_an_evaluation(small, data_root, run_here, tmp_path):
    cfg = load_smoke_config("x3d", *(word[2:] for word in small[2:]))
    weights = save_random_weights(cfg, tmp_path / "net.ckpt", "x3d")
    arguments = [*small, "--eval.clips=2", "--eval.crops=3"]
    command = [*arguments, f"--report={tmp_path / 'report'}", "--checkpoint_path", weights]
    result = read_result(run_here("x3d/eval.py", *command))
    assert (result["videos"], result["views"], result["unreadable"]) == (8, "2x3", 0)
    rows = assert_report(tmp_path / "report", result)
    assert_predictions(
        arguments, weights=weights, rows=rows[:2], root=data_root, out=tmp_path, run=run_here
    )


@pytest.mark.slow
def test_two_workers_equal_one_with_twice_the_batch(small, tmp_path):
    """Batch norms are frozen. Weights differ by the rounding of another order of additions."""
    plain = ["--train.batch_norm=frozen", "--train.epochs=1", "--train.lr=0.01"]
    alone = run_json("x3d/train.py", *small, *plain, f"--run.out={tmp_path / 'one'}")
    split = ["--data.batch=2", "--run.all_reduce=[s2, s3, s4]", f"--run.out={tmp_path / 'two'}"]
    arguments = ["x3d", "2", small[1], *small[2:], *plain, *split]
    saving = build_dump_env(tmp_path / "graphs")
    done = run_script("scripts/run_distribute_train.sh", *arguments, environment=saving)
    assert len(assert_segments(done, tmp_path / "graphs")) == 4
    assert_close_weights(alone["checkpoint"], read_result(done)["checkpoint"])


@pytest.mark.slow
def test_a_training_validates_after_every_epoch(trained):
    rows = [json.loads(line) for line in (trained.parent / "log.jsonl").read_text().splitlines()]
    assert sum("top5" in row for row in rows) == 2


@pytest.mark.slow
def test_a_mindir_gives_the_results_of_its_checkpoint(small, data_root, trained, tmp_path):
    video = data_root / "videos" / "test" / "grow_000.mp4"
    assert_mindir_matches("x3d", arguments=small, weights=trained, source=video, folder=tmp_path)


@pytest.mark.slow
def test_fine_tuning_initializes_only_the_classifier(small, trained, tmp_path):
    """In mixed precision, with another number of classes."""
    assert "precise batch norm over 2 batches" in (trained.parent / "run.log").read_text()
    begin = [f"--train.pretrained={trained}", "--model.num_classes=11", "--run.amp=O2"]
    begin += ["--run.loss_scale=128", "--train.epochs=1", "--train.lr=1e-9"]
    begin += ["--train.warmup_epochs=0", f"--run.out={tmp_path / 'run'}"]
    done = run_script("x3d/train.py", *small, *begin)
    assert done.returncode == 2
    assert "new_head" in done.stderr
    result = run_json("x3d/train.py", *small, *begin, "--train.new_head=true")
    before = read_weights(trained)
    after = read_weights(result["checkpoint"])
    assert after["head.projection.weight"].shape == (11, 2048)
    kept = [name for name in before if "projection" not in name and "moving" not in name]
    for name in kept:
        np.testing.assert_allclose(before[name], after[name], atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_kills_at_random_moments_change_no_weight(small, tmp_path):
    assert_kills_change_no_weight("x3d/train.py", small, tmp_path)


@pytest.mark.slow
def test_a_frozen_backbone_with_all_settings_of_fine_tuning(small, tmp_path):
    result = assert_fine_tuning("x3d", small, tmp_path / "run")
    assert result["steps"] > 0
