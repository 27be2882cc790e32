"""Workers that mpirun starts: simulated by its variables, and with mpirun if it is installed."""

import json
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from tests.helpers import (
    assert_one_line_error,
    assert_same_weights,
    build_env,
    pick_port,
    read_result,
    start_script,
    wait_for_step,
)
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


@pytest.fixture
def mpirun() -> list:
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    options = ["--oversubscribe", "--bind-to", "none", "-n", "2"]
    return ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), *options]


@pytest.mark.slow
def test_mpirun_trains_the_same_weights_and_ends_all_ranks_after_a_kill(
    mpirun, pair_args, pair_run, tmp_path
):
    out = tmp_path / "run"
    command = [*mpirun, "-x", f"MASTER_PORT={pick_port()}", sys.executable]
    command += [ROOT / "scripts" / "launch_mpi.py", TRAIN, *pair_args, "--run.save_steps=1"]
    command += [f"--run.out={out}"]
    options = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    job = subprocess.Popen([*map(str, command)], env=build_env(), **options)
    wait_for_step(job, out, 3)
    processes = psutil.Process(job.pid).children(recursive=True)
    rank_1 = [p for p in processes if p.environ().get("MS_NODE_ID") == "1"]
    os.kill(rank_1[0].pid, signal.SIGKILL)
    _, errors = job.communicate(timeout=600)
    assert job.returncode != 0
    assert "rank 1 was killed by SIGKILL" in errors
    assert not psutil.wait_procs(processes, timeout=600)[1]
    done = subprocess.run([*map(str, command)], env=build_env(), **options, timeout=600)
    assert read_result(done)["steps"] == 12
    assert_same_weights(pair_run[1]["checkpoint"], out / "epoch_002.ckpt")
