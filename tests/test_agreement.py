"""All ranks react in the same way to an overflow or a request on one rank."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import read_weights, run_json, run_script

WORKER = Path(__file__).parent / "distributed_train_worker.py"
SCALED = ["--data.batch=2", "--run.dynamic_loss_scale=true", "--run.loss_scale=1024"]


def run_two_ranks(folder: Path, arguments: list, **variables: str) -> tuple:
    """Trains on two ranks, and returns the log and the state of each rank."""
    out = f"--run.out={folder / 'run'}"
    completed = run_script("scripts/launch.py", "2", WORKER, *arguments, out, environment=variables)
    assert completed.returncode == 0, completed.stderr
    return completed.stderr, [np.load(folder / f"rank_{rank}.npz") for rank in (0, 1)]


@pytest.fixture(scope="module")
def overflow_run(tiny_args, tmp_path_factory):
    """A run of two ranks with averages and a dynamic loss scale; rank 1 overflows in step 3."""
    arguments = [*tiny_args, *SCALED, "--train.ema_decay=0.9", "--run.eval_every=2"]
    return run_two_ranks(tmp_path_factory.mktemp("overflow"), arguments, POISONED_STEP="3")


def assert_update_skipped(states: list) -> None:
    """Asserts that both ranks have skipped one update and halved the loss scale."""
    for state in states:
        assert state["scale_value"] == 512
        assert state["global_step"] == 11, "12 steps, one without an update"


def test_both_ranks_end_with_the_same_state(overflow_run):
    """Weights, momentum, averages, loss scale, counters and running statistics are equal.

    Only the averages of the running statistics differ; rank 0 saves its averages.
    """
    _, (rank_0, rank_1) = overflow_run
    assert len(rank_0.files) > 250
    for name in rank_0.files:
        if not ("moving" in name and name.startswith("ema")):
            np.testing.assert_array_equal(rank_0[name], rank_1[name], name)


def test_an_overflow_on_one_rank_skips_the_update_and_lowers_the_scale_on_both(overflow_run):
    log, states = overflow_run
    assert_update_skipped(states)
    assert "overflows 0" in log


def test_an_overflow_flag_of_one_rank_skips_the_update_on_both(tiny_args, tmp_path):
    """The gradients are finite, so the sums do not show the overflow to the other rank."""
    _, states = run_two_ranks(tmp_path, [*tiny_args, *SCALED], FLAGGED_STEP="3")
    assert_update_skipped(states)
    for name in states[0].files:
        if "moving" not in name:
            np.testing.assert_array_equal(states[0][name], states[1][name], name)


@pytest.fixture(scope="module")
def stopped_run(pair_args, tmp_path_factory):
    """A run of two ranks in which rank 1 requests the end after step 4 of 12."""
    folder = tmp_path_factory.mktemp("stopped")
    return folder / "run", *run_two_ranks(folder, pair_args, LAST_STEP="4")


@pytest.mark.slow
def test_both_ranks_stop_in_the_same_step(stopped_run):
    """They stop one step after the request: that step broadcasts it."""
    _, log, states = stopped_run
    assert [state["micro_step"] for state in states] == [5, 5]
    assert "stopped at step 5, saved" in log


@pytest.mark.slow
def test_a_run_of_two_devices_resumes_on_one(stopped_run, pair_args, pair_run):
    """It resumes in the middle of an epoch, with two micro-batches per update.

    Its weights equal those of an uninterrupted run up to rounding.
    """
    arguments = [*pair_args, "--train.accumulation_steps=2", f"--run.out={stopped_run[0]}"]
    result = run_json("tsm/train.py", *arguments)
    assert result["steps"] == 24
    actual, expected = read_weights(result["checkpoint"]), read_weights(pair_run[1]["checkpoint"])
    for name, value in actual.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_another_effective_batch_size_cannot_resume_a_run(stopped_run, pair_args):
    completed = run_script(
        "tsm/train.py", *pair_args, "--data.batch=3", f"--run.out={stopped_run[0]}"
    )
    assert completed.returncode == 2
    assert "holds a run of 4 samples an update" in completed.stderr.splitlines()[-1]
