"""Workers that mpirun has started: played by its variables, and by itself where it is installed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.helpers import (
    assert_same_weights,
    build_env,
    pick_port,
    read_result,
    read_step,
    run_script,
)
from utils.config import ROOT

TRAIN = ROOT / "tsm" / "train.py"


def test_mpirun_without_its_worker_script_is_told_about_it(tiny_args):
    done = run_script("tsm/train.py", *tiny_args, environment={"OMPI_COMM_WORLD_SIZE": "2"})
    assert done.returncode == 2
    assert "scripts/launch_mpi.py" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_two_processes_of_mpirun_train_as_two_of_msrun(pair_args, pair_run, tmp_path):
    """mpirun is played by its variables: what it does besides is to start and end processes."""
    port, ranks = pick_port(), []
    for rank in ("1", "0"):
        given = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank}
        given |= {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        command = [sys.executable, ROOT / "scripts" / "launch_mpi.py", TRAIN, *pair_args]
        ranks.append(
            subprocess.Popen(
                [*map(str, command), f"--run.out={tmp_path / 'run'}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**build_env(), **given, "MASTER_PORT": port},
            )
        )
    (second, others), (first, errors) = (rank.communicate(timeout=200) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], errors + others
    assert json.loads(first.splitlines()[-1])["steps"] == 12
    assert second == "", "its log is in out/logs"
    assert_same_weights(pair_run[1]["checkpoint"], tmp_path / "run" / "epoch_002.ckpt")


@pytest.fixture
def mpirun() -> list:
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    options = ["--oversubscribe", "--bind-to", "none", "-n", "2"]
    return ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), *options]


@pytest.mark.slow
def test_mpirun_itself_trains_the_same_and_ends_all(mpirun, pair_args, pair_run, tmp_path):
    out = tmp_path / "run"
    command = [*mpirun, "-x", f"MASTER_PORT={pick_port()}", sys.executable]
    command += [ROOT / "scripts" / "launch_mpi.py", TRAIN, *pair_args, "--run.save_steps=1"]
    command += [f"--run.out={out}"]
    options = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    job = subprocess.Popen([*map(str, command)], env=build_env(), **options)
    while read_step(out) < 3:
        assert job.poll() is None, job.stderr.read()
        time.sleep(0.01)
    family = psutil.Process(job.pid).children(recursive=True)
    second = [p for p in family if p.environ().get("MS_NODE_ID") == "1"]
    os.kill(second[0].pid, signal.SIGKILL)
    _, errors = job.communicate(timeout=60)
    assert job.returncode != 0
    assert "rank 1 was killed by SIGKILL" in errors
    assert not psutil.wait_procs(family, timeout=10)[1]
    done = subprocess.run([*map(str, command)], env=build_env(), **options, timeout=200)
    assert read_result(done)["steps"] == 12
    assert_same_weights(pair_run[1]["checkpoint"], out / "epoch_002.ckpt")
