"""Failures of jobs: failed, killed and interrupted processes; restarts of a job."""

import random
import signal
import time

import psutil
import pytest

from tests.helpers import (
    assert_same_weights,
    list_processes,
    read_result,
    read_step,
    run_script,
    start_launcher,
    start_script,
    wait_for_step,
    wait_until,
)
from utils.files import ROOT

FAKE_WORKER = ROOT / "tests" / "fake_worker.py"
TRAIN = ROOT / "tsm" / "train.py"


def wait_for_processes(job) -> dict:
    """Waits until a job has a scheduler and two workers, and returns them."""
    wait_until(job, lambda: len(list_processes(job)) >= 3)
    return list_processes(job)


def wait_for_end(job, processes) -> str:
    """Waits until job and processes have ended; the last line on stderr."""
    job.output, job.errors = job.communicate(timeout=600)
    _, alive = psutil.wait_procs(processes, timeout=600)
    assert not alive
    return (job.errors.splitlines() or [""])[-1]


@pytest.mark.parametrize(
    ("action", "status", "line"),
    [
        ("fail", 1, "rank 1 ended with status 3; see "),
        ("lose", 1, "rank 1: error: data.processes"),
        ("mistake", 2, "rank 1: error: data.root"),
    ],
)
def test_a_failed_worker_is_named_and_ends_the_others(action, status, line):
    """A user error does not restart a job."""
    restarts = f"--restarts={2 if action == 'mistake' else 0}"
    done = run_script("scripts/launch.py", restarts, "2", FAKE_WORKER, f"1:{action}")
    assert (done.returncode, done.stdout) == (status, "")
    assert line in done.stderr.splitlines()[-1]
    assert "restart" not in done.stderr


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1, "scheduler"])
def test_a_killed_process_is_named(victim):
    job = start_launcher("2", FAKE_WORKER, "all:wait")
    processes = wait_for_processes(job)
    processes[victim].kill()
    line = wait_for_end(job, processes.values())
    assert job.returncode == 1
    name = "the scheduler" if victim == "scheduler" else f"rank {victim}"
    assert line.startswith(f"{name} was killed by SIGKILL; see {ROOT / 'out' / 'logs'}")


def test_workers_end_after_their_launcher_is_killed():
    job = start_launcher("2", FAKE_WORKER, "all:wait")
    processes = wait_for_processes(job)
    job.kill()
    wait_for_end(job, processes.values())


@pytest.mark.parametrize(
    ("number", "status"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)],
)
def test_an_interrupted_job_is_not_restarted(number, status):
    job = start_launcher("--restarts=3", "2", FAKE_WORKER, "all:wait")
    processes = wait_for_processes(job)
    job.send_signal(number)
    wait_for_end(job, processes.values())
    assert job.returncode == status


def test_a_failed_job_restarts_and_keeps_its_logs():
    job = start_launcher("--restarts", "2", "2", FAKE_WORKER, "0:fail")
    output, errors = job.communicate(timeout=600)
    assert job.returncode == 0, errors
    assert output == '{"rank": 0}\n'
    assert "restart 1 of 2, from the last checkpoint" in errors
    assert "restart 2 of 2" not in errors
    folders = sorted((ROOT / "out" / "logs").glob(f"*-{job.pid}*"))
    assert [folder.name.count("-restart-1") for folder in folders] == [0, 1]
    assert all((folder / f"worker_{rank}.log").exists() for folder in folders for rank in (0, 1))


@pytest.mark.slow
def test_a_killed_worker_changes_no_weight(pair_args, pair_run, tmp_path):
    """With --restarts, one command gives the weights of an uninterrupted run."""
    out = tmp_path / "run"
    arguments = ["2", TRAIN, *pair_args, "--run.save_steps=1", f"--run.out={out}"]
    job = start_launcher("--restarts=1", *arguments)
    wait_for_step(job, out, 3)
    list_processes(job)[1].kill()
    output, errors = job.communicate(timeout=600)
    assert job.returncode == 0, errors
    assert "rank 1 was killed by SIGKILL" in errors
    assert "restart 1 of 1" in errors
    assert_same_weights(pair_run[1]["checkpoint"], out / "epoch_002.ckpt")


def test_a_killed_data_worker_ends_a_training_in_one_line(tiny_args, tmp_path):
    arguments = [*tiny_args, "--train.epochs=60", "--run.save_steps=1", "--run.log_every=1000"]
    arguments += ["--data.processes=true", "--data.workers=2", f"--run.out={tmp_path / 'run'}"]
    job = start_script("tsm/train.py", *arguments)
    wait_for_step(job, tmp_path / "run", 3)
    workers = psutil.Process(job.pid).children()
    workers[0].kill()
    line = wait_for_end(job, workers)
    assert job.returncode == 1
    assert line.startswith("error: data.processes: ")
    assert not [word for word in ("Traceback", "ERROR", "Stack") if word in job.errors]
    assert read_step(tmp_path / "run") >= 3


@pytest.mark.slow
def test_kills_at_random_moments_change_no_weight(pair_args, tmp_path):
    """Kills a random worker and runs the same command again, 8 times.

    The kills come in turns while the job starts and while it trains or saves.
    """
    arguments = ["2", TRAIN, *pair_args, "--train.epochs=100", "--run.save_every=100"]
    arguments += ["--run.save_steps=1", "--run.log_every=20"]
    killed = tmp_path / "killed"
    whole = tmp_path / "whole"
    start_time = time.monotonic()
    job = start_launcher(*arguments, f"--run.out={whole}")
    wait_for_step(job, whole, 1)
    start_up = time.monotonic() - start_time
    job.communicate(timeout=600)
    assert job.returncode == 0
    seed = random.SystemRandom().randrange(10**6)  # MindSpore seeds `random` at import
    print(f"seed {seed}")
    chance = random.Random(seed)
    step = 0
    for attempt in range(8):
        job = start_launcher(*arguments, f"--run.out={killed}")
        processes = wait_for_processes(job)
        if attempt % 2:
            wait_for_step(job, killed, step + chance.randint(1, 20))
        time.sleep(chance.uniform(0, 0.3 if attempt % 2 else start_up))
        victim = chance.choice([0, 1])
        processes[victim].kill()
        line = wait_for_end(job, processes.values())
        assert job.returncode == 1
        assert line.startswith(f"rank {victim} was killed by SIGKILL; see ")
        assert read_step(killed) >= step
        step = read_step(killed)
    done = run_script("scripts/launch.py", *arguments, f"--run.out={killed}")
    assert read_result(done)["steps"] == 600
    for name in ("epoch_100.ckpt", "resume.ckpt"):
        assert_same_weights(whole / name, killed / name)
