"""All ranks react in the same way to an overflow or a request on one rank."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import assert_close_weights, run_json, run_script

WORKER = Path(__file__).parent / "distributed_train_worker.py"


def run_two_ranks(folder: Path, arguments: list, **variables: str) -> tuple:
    """Trains on two ranks, and returns the log and the state of each rank."""
    out = f"--run.out={folder / 'run'}"
    completed = run_script("scripts/launch.py", "2", WORKER, *arguments, out, environment=variables)
    assert completed.returncode == 0, completed.stderr
    return completed.stderr, [np.load(folder / f"rank_{rank}.npz") for rank in (0, 1)]


def test_an_overflow_on_one_rank_skips_the_update_and_lowers_the_scale_on_both(tiny_args, tmp_path):
    """Rank 1 overflows in step 3; in step 6 only its flag shows an overflow: the sums are finite.

    Weights, momentum, averages, loss scale, counters and running statistics are then equal. Only
    the averages of the running statistics differ; rank 0 saves its averages.
    """
    arguments = [*tiny_args, "--data.batch=2", "--run.dynamic_loss_scale=true"]
    arguments += ["--run.loss_scale=1024", "--train.ema_decay=0.9", "--run.eval_every=2"]
    faults = {"POISONED_STEP": "3", "FLAGGED_STEP": "6"}
    log, (rank_0, rank_1) = run_two_ranks(tmp_path, arguments=arguments, **faults)
    for state in (rank_0, rank_1):
        assert state["scale_value"] == 256
        assert state["global_step"] == 10, "12 steps, two without an update"
    assert "overflows 0" in log
    assert len(rank_0.files) > 250
    for name in rank_0.files:
        if not ("moving" in name and name.startswith("ema")):
            np.testing.assert_array_equal(rank_0[name], rank_1[name], name)


@pytest.fixture(scope="module")
def stopped_run(pair_args, tmp_path_factory):
    """A run of two ranks in which rank 1 requests the end after step 3 of 12."""
    folder = tmp_path_factory.mktemp("stopped")
    return folder / "run", *run_two_ranks(folder, pair_args, LAST_STEP="3")


@pytest.mark.slow
def test_both_ranks_stop_in_the_same_step(stopped_run):
    """Step 4 broadcasts the request, and is logged, so the host reads its values at once."""
    _, log, states = stopped_run
    assert [state["micro_step"] for state in states] == [4, 4]
    assert "stopped at step 4, saved" in log


@pytest.mark.slow
def test_a_run_of_two_devices_resumes_on_one(stopped_run, pair_args, pair_run):
    """It resumes in the middle of an epoch, with two micro-batches per update.

    Its weights equal those of an uninterrupted run up to rounding.
    """
    arguments = [*pair_args, "--train.accumulation_steps=2", f"--run.out={stopped_run[0]}"]
    result = run_json("tsm/train.py", *arguments)
    assert result["steps"] == 24
    assert_close_weights(pair_run[1]["checkpoint"], result["checkpoint"])
