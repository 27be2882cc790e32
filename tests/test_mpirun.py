"""Workers that mpirun starts, simulated by its variables."""

import json

import pytest

from tests.helpers import assert_one_line_error, assert_same_weights, pick_port, start_script
from utils.files import ROOT

TRAIN = ROOT / "tsm" / "train.py"


def test_training_under_mpirun_without_launch_mpi_is_a_user_error(tiny_args, run_here, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert_one_line_error(run_here("tsm/train.py", *tiny_args), "scripts/launch_mpi.py")


@pytest.mark.slow
def test_two_ranks_of_mpirun_train_the_same_weights_as_two_of_msrun(pair_args, pair_run, tmp_path):
    """The test sets the variables of mpirun and starts the processes as mpirun would."""
    port = pick_port()
    ranks = []
    for rank in ("1", "0"):
        variables = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank}
        variables |= {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        arguments = [TRAIN, *pair_args, f"--run.out={tmp_path / 'run'}"]
        variables["MASTER_PORT"] = port
        ranks.append(start_script("scripts/launch_mpi.py", *arguments, **variables))
    (output_1, errors_1), (output_0, errors_0) = (rank.communicate(timeout=600) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], errors_0 + errors_1
    assert json.loads(output_0.splitlines()[-1])["steps"] == 12
    assert output_1 == "", "rank 1 logs to out/logs"
    assert_same_weights(pair_run[1]["checkpoint"], tmp_path / "run" / "epoch_002.ckpt")
