"""All ranks react in the same way to an overflow or a request on one rank."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import read_weights, run_json, run_script

WORKER = Path(__file__).parent / "distributed_train_worker.py"


@pytest.fixture(scope="module")
def overflow_run(tiny_args, tmp_path_factory):
    """A run of two ranks with averages and a dynamic loss scale; rank 1 overflows in step 3."""
    folder = tmp_path_factory.mktemp("poisoned")
    arguments = [
        *tiny_args,
        "--data.batch=2",
        "--train.ema_decay=0.9",
        "--run.dynamic_loss_scale=true",
    ]
    arguments += ["--run.loss_scale=1024", "--run.eval_every=2", f"--run.out={folder / 'run'}"]
    done = run_script(
        "scripts/launch.py", "2", WORKER, *arguments, environment={"POISONED_STEP": "3"}
    )
    assert done.returncode == 0, done.stderr
    return [np.load(folder / f"rank_{rank}.npz") for rank in (0, 1)], done.stderr


def test_both_ranks_end_with_the_same_state(overflow_run):
    """Weights, momentum, averages, loss scale, counters and running statistics are equal.

    Only the averages of the running statistics differ; rank 0 saves its averages.
    """
    (rank_0, rank_1), _ = overflow_run
    assert len(rank_0.files) > 250
    for name in rank_0.files:
        if not ("moving" in name and name.startswith("ema")):
            np.testing.assert_array_equal(rank_0[name], rank_1[name], name)


def test_an_overflow_on_one_rank_skips_the_update_and_lowers_the_scale_on_both(overflow_run):
    (rank_0, rank_1), log = overflow_run
    assert rank_0["scale_value"] == rank_1["scale_value"] == 512
    assert rank_0["global_step"] == rank_1["global_step"] == 11, "12 steps, one without an update"
    assert "overflows 0" in log


def test_an_overflow_flag_of_one_rank_skips_the_update_on_both(tiny_args, tmp_path):
    """The gradients are finite, so the sums do not show the overflow to the other rank."""
    arguments = [
        *tiny_args,
        "--data.batch=2",
        "--run.dynamic_loss_scale=true",
        "--run.loss_scale=1024",
    ]
    arguments += [f"--run.out={tmp_path / 'run'}"]
    done = run_script(
        "scripts/launch.py", "2", WORKER, *arguments, environment={"FLAGGED_STEP": "3"}
    )
    assert done.returncode == 0, done.stderr
    rank_0, rank_1 = (np.load(tmp_path / f"rank_{rank}.npz") for rank in (0, 1))
    assert rank_0["scale_value"] == rank_1["scale_value"] == 512
    assert rank_0["global_step"] == rank_1["global_step"] == 11, "12 steps, one without an update"
    for name in rank_0.files:
        if "moving" not in name:
            np.testing.assert_array_equal(rank_0[name], rank_1[name], name)


@pytest.fixture(scope="module")
def stopped_run(pair_args, tmp_path_factory):
    """A run of two ranks in which rank 1 requests the end after step 4 of 12."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    done = run_script(
        "scripts/launch.py",
        "2",
        WORKER,
        *pair_args,
        f"--run.out={out}",
        environment={"LAST_STEP": "4"},
    )
    assert done.returncode == 0, done.stderr
    return out, done


@pytest.mark.slow
def test_both_ranks_stop_in_the_same_step(stopped_run):
    """They stop one step after the request: that step broadcasts it."""
    out, done = stopped_run
    rank_0, rank_1 = (np.load(out.parent / f"rank_{rank}.npz") for rank in (0, 1))
    assert rank_0["micro_step"] == rank_1["micro_step"] == 5
    assert "stopped at step 5, saved" in done.stderr


@pytest.mark.slow
def test_a_run_of_two_devices_resumes_on_one(stopped_run, pair_args, pair_run):
    """It resumes in the middle of an epoch, with two micro-batches per update.

    Its weights equal those of an uninterrupted run up to rounding.
    """
    out, _ = stopped_run
    result = run_json(
        "tsm/train.py", *pair_args, "--train.accumulation_steps=2", f"--run.out={out}"
    )
    assert result["steps"] == 24
    actual, expected = read_weights(result["checkpoint"]), read_weights(pair_run[1]["checkpoint"])
    for name, value in actual.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_another_effective_batch_size_cannot_resume_a_run(stopped_run, pair_args):
    done = run_script("tsm/train.py", *pair_args, "--data.batch=3", f"--run.out={stopped_run[0]}")
    assert done.returncode == 2
    assert "holds a run of 4 samples an update" in done.stderr.splitlines()[-1]
