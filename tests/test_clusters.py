"""The scripts for Slurm and ModelArts, and the Dockerfiles: docs/clusters.md.

Slurm and ModelArts are simulated by their variables. No image is built.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import (
    build_env,
    copy_scripts,
    mark_installed,
    read_result,
    run_command,
    run_json,
)
from utils.files import ROOT

LAUNCH = "scripts/cluster/slurm.sh"
DASK = "scripts/cluster/slurm_dask.sh"
# Starts the command that begins with bash or python once for every node, as srun does.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for ((node = SLURM_NNODES - 1; node > 0; node--)); do SLURM_NODEID=$node "$@" & done
SLURM_NODEID=0 "$@"
status=$?
wait
exit $status
"""
PRINT = 'printf "%s\\n" "$NODES $NODE_RANK $MASTER_ADDR $MASTER_PORT $*"\n'


def run_as_job(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess:
    """Runs a script as the batch script of a job of two nodes, with a simulated srun."""
    srun = folder / "bin" / "srun"
    srun.parent.mkdir(exist_ok=True)
    srun.write_text(SRUN)
    srun.chmod(0o755)
    spool = shutil.copy(ROOT / command[0], folder / "slurm_script")  # sbatch copies it
    environment = build_env()
    environment["PATH"] = f"{srun.parent}{os.pathsep}{environment['PATH']}"
    environment |= {"SLURM_NNODES": "2", "SLURM_JOB_ID": "21234", "SLURM_CPUS_ON_NODE": "1"}
    environment |= {"SLURM_SUBMIT_DIR": str(ROOT), "MASTER_ADDR": "127.0.0.1", **variables}
    return run_command(["bash", spool, *command[1:]], env=environment, cwd="/")


def test_every_node_of_a_slurm_job_gets_its_number_and_the_settings_of_the_job(tmp_path):
    (tmp_path / "print.sh").write_text(PRINT)
    done = run_as_job(tmp_path, LAUNCH, tmp_path / "print.sh", "tsm", "a b")
    assert done.returncode == 0, done.stderr
    lines = [f"2 {node} 127.0.0.1 11234 tsm a b" for node in (0, 1)]
    assert sorted(done.stdout.splitlines()) == lines


CHECK = "scripts/data/check_videos.py"


@pytest.mark.slow
def test_a_simulated_slurm_job_checks_videos_on_dask(tiny_args, tmp_path):
    pytest.importorskip("distributed")
    done = run_as_job(tmp_path, DASK, CHECK, *tiny_args[:3], "--out", tmp_path / "dask")
    here = run_json(CHECK, *tiny_args[:3], "--out", tmp_path / "here")
    assert {**read_result(done), "seconds": 0, "lists": 0} == {**here, "seconds": 0, "lists": 0}
    assert not list((ROOT / "out").glob("dask-21234.json"))


MOXING = """
import os, shutil
def find(name):
    return name.replace("obs:/", os.environ["BUCKETS"])
class file:
    def exists(name):
        return os.path.exists(find(name))
    def copy_parallel(source, target):
        shutil.copytree(find(source), find(target), dirs_exist_ok=True)
"""
JOB = """
mkdir -p out
echo "$NODES $NODE_RANK $MASTER_ADDR $*" > out/settings
ls data out > out/files
trap 'echo saved > out/saved; exit 0' TERM
if [ "$1" = wait ]; then touch out/waiting; while :; do sleep 0.1; done; fi
exit "$1"
"""


@pytest.fixture
def modelarts(tmp_path, monkeypatch):
    """A function that starts a ModelArts job; its buckets are folders of `tmp_path/obs`."""
    monkeypatch.delenv("ZOO_VENV", raising=False)
    copy_scripts(tmp_path / "zoo", "exit 1")
    mark_installed(tmp_path / "zoo")
    (tmp_path / "zoo" / "job.sh").write_text(JOB)
    (tmp_path / "moxing.py").write_text(MOXING)
    (tmp_path / "obs" / "b" / "data").mkdir(parents=True)
    (tmp_path / "obs" / "b" / "data" / "train.txt").touch()
    environment = {**build_env(), "PYTHONPATH": str(tmp_path), "BUCKETS": f"{tmp_path / 'obs'}"}
    environment |= {"MOXING_PYTHON": sys.executable, "OUT_SECONDS": "1"}

    def start(argument: str, **variables: str) -> subprocess.Popen:
        script = tmp_path / "zoo" / "scripts" / "cluster" / "modelarts.sh"
        command = ["bash", str(script), "job.sh", argument]
        return subprocess.Popen(command, env={**environment, **variables})

    return start


URLS = {"DATA_URL": "obs://b/data", "OUT_URL": "obs://b/runs"}


def test_a_job_on_modelarts_copies_data_in_and_results_out(modelarts, tmp_path):
    hosts = {"MA_NUM_HOSTS": "2", "VC_WORKER_HOSTS": "one.svc:6000,two.svc:6000"}
    assert modelarts("3", **URLS, **hosts, VC_TASK_INDEX="0").wait(600) == 3
    runs = tmp_path / "obs" / "b" / "runs"
    assert (runs / "settings").read_text() == "2 0 one.svc 3\n"
    assert "train.txt" in (runs / "files").read_text()
    shutil.rmtree(tmp_path / "zoo" / "out")
    assert modelarts("0", **URLS, **hosts, VC_TASK_INDEX="1").wait(600) == 0
    assert (tmp_path / "zoo" / "out" / "settings").read_text() == "2 1 one.svc 0\n"
    assert "settings" in (tmp_path / "zoo" / "out" / "files").read_text()  # of the run before
    assert (runs / "settings").read_text() == "2 0 one.svc 3\n"  # node 1 copies nothing back
    shutil.rmtree(tmp_path / "zoo" / "out")
    assert modelarts("0").wait(600) == 0
    assert (tmp_path / "zoo" / "out" / "settings").read_text() == "1 0 127.0.0.1 0\n"


def test_a_job_on_modelarts_copies_results_while_it_runs_and_passes_sigterm_on(modelarts, tmp_path):
    job = modelarts("wait", **URLS)
    runs = tmp_path / "obs" / "b" / "runs"
    deadline = time.monotonic() + 600
    while not (runs / "waiting").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    assert job.wait(600) == 0
    assert (runs / "saved").is_file()


def test_the_commands_of_the_page_name_files_that_exist():
    """tests/test_documents.py does not run them: they need a cluster."""
    page = (ROOT / "docs" / "clusters.md").read_text()
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    names = re.findall(r"[\w./-]+\.(?:sh|py|Dockerfile|yaml)\b", commands)
    assert len(names) > 10
    assert [name for name in names if not (ROOT / name).is_file()] == []
    subprocess.run(["bash", "-n", "-c", commands], check=True)


DOCKER = ROOT / "scripts" / "docker"


def read_instructions(file: Path) -> list[tuple[str, str]]:
    """(instruction, its text in one line)."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(" ", 1)) for line in text.splitlines() if line]


def test_the_files_that_a_dockerfile_copies_suffice_for_its_installation(tmp_path):
    """The environment counts as installed; without a copied file the command would fail."""
    instructions = read_instructions(DOCKER / "cpu.Dockerfile")
    copies = [text.split() for kind, text in instructions if kind == "COPY" and text != ". ."]
    for *sources, target in copies:
        (tmp_path / target).mkdir(exist_ok=True)
        for source in sources:
            shutil.copy(ROOT / source, tmp_path / target)
    mark_installed(tmp_path)
    (command,) = [text for kind, text in instructions if kind == "RUN" and "env.sh" in text]
    environment = {k: v for k, v in os.environ.items() if k != "ZOO_VENV"}
    done = run_command(["bash", "-c", command], cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
