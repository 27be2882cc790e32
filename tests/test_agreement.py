"""What one rank alone sees or asks for, all ranks act upon alike."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import read_weights, run_json, run_script

RANKS = Path(__file__).parent / "distributed_train_worker.py"


@pytest.fixture(scope="module")
def poisoned(tiny_args, tmp_path_factory):
    """Two ranks with averages and a dynamic loss scale; the last one has an overflow in step 3."""
    folder = tmp_path_factory.mktemp("poisoned")
    arguments = [
        *tiny_args,
        "--data.batch=2",
        "--train.ema_decay=0.9",
        "--run.dynamic_loss_scale=true",
    ]
    arguments += ["--run.loss_scale=1024", "--run.eval_every=2", f"--run.out={folder / 'run'}"]
    done = run_script(
        "scripts/launch.py", "2", RANKS, *arguments, environment={"POISONED_STEP": "3"}
    )
    assert done.returncode == 0, done.stderr
    return [np.load(folder / f"rank_{rank}.npz") for rank in (0, 1)], done.stderr


def test_both_ranks_end_with_the_same_state(poisoned):
    """Weights, momentum, averages, loss scale, counters; running statistics for the evaluation.

    Only what is averaged of the running statistics is each rank's own; rank 0 saves its.
    """
    (first, second), _ = poisoned
    assert len(first.files) > 250
    for name in first.files:
        if not ("moving" in name and name.startswith("ema")):
            np.testing.assert_array_equal(first[name], second[name], name)


def test_an_overflow_on_one_rank_is_left_out_and_lowers_the_scale_on_both(poisoned):
    (first, second), messages = poisoned
    assert first["scale_value"] == second["scale_value"] == 512
    assert first["global_step"] == second["global_step"] == 11, "12 steps, one without an update"
    assert "overflows 0" in messages


def test_an_overflow_that_one_rank_alone_finds_is_left_out_on_both(tiny_args, tmp_path):
    """Its gradients are finite, so no other rank can see it in the sums."""
    arguments = [
        *tiny_args,
        "--data.batch=2",
        "--run.dynamic_loss_scale=true",
        "--run.loss_scale=1024",
    ]
    arguments += [f"--run.out={tmp_path / 'run'}"]
    done = run_script(
        "scripts/launch.py", "2", RANKS, *arguments, environment={"FLAGGED_STEP": "3"}
    )
    assert done.returncode == 0, done.stderr
    first, second = (np.load(tmp_path / f"rank_{rank}.npz") for rank in (0, 1))
    assert first["scale_value"] == second["scale_value"] == 512
    assert first["global_step"] == second["global_step"] == 11, "12 steps, one without an update"
    for name in first.files:
        if "moving" not in name:
            np.testing.assert_array_equal(first[name], second[name], name)


@pytest.fixture(scope="module")
def stopped(pair_args, tmp_path_factory):
    """A run of two ranks that the last one asked to end after step 4 of 12."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    done = run_script(
        "scripts/launch.py", "2", RANKS, *pair_args, f"--run.out={out}", environment=LAST_4
    )
    assert done.returncode == 0, done.stderr
    return out, done


LAST_4 = {"LAST_STEP": "4"}


@pytest.mark.slow
def test_both_ranks_stop_where_one_asks_for_it(stopped):
    """In the step after it: only then do the others know."""
    out, done = stopped
    first, second = (np.load(out.parent / f"rank_{rank}.npz") for rank in (0, 1))
    assert first["micro_step"] == second["micro_step"] == 5
    assert "stopped at step 5, saved" in done.stderr


@pytest.mark.slow
def test_a_run_of_two_devices_goes_on_with_one(stopped, pair_args, pair_run):
    """In steps of half the samples, two to an update, from the middle of an epoch.

    Up to the rounding of another order of additions, it ends where two undisturbed ranks do.
    """
    out, _ = stopped
    result = run_json(
        "tsm/train.py", *pair_args, "--train.accumulation_steps=2", f"--run.out={out}"
    )
    assert result["steps"] == 24
    first, second = read_weights(result["checkpoint"]), read_weights(pair_run[1]["checkpoint"])
    for name, value in first.items():
        np.testing.assert_allclose(value, second[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_another_number_of_samples_an_update_is_refused(stopped, pair_args):
    done = run_script("tsm/train.py", *pair_args, "--data.batch=3", f"--run.out={stopped[0]}")
    assert done.returncode == 2
    assert "holds a run of 4 samples an update" in done.stderr.splitlines()[-1]
