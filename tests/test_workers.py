"""Workers of the launcher: HCCL timeouts, cores and threads, crashes after complete work."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.helpers import build_env, read_result, run_command, run_script
from utils.cores import LAUNCHER_CORES, list_affinity
from utils.files import ROOT

CPUSET = Path("/sys/fs/cgroup/cpuset/cpuset.cpus")  # msrun reads the cores from here
# A worker without MindSpore: prints its cores and some environment variables.
PRINT_ENVIRONMENT = """
import json, os, time
from utils import cores

if os.environ["MS_ROLE"] == "MS_SCHED":
    time.sleep(100)
names = [cores.LAUNCHER_CORES, "HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT", "OMP_NUM_THREADS"]
variables = {name: os.environ.get(name) for name in names}
own = cores.list_affinity()
print(json.dumps({**variables, "cores": own, "bound": cores.is_bound()}))
"""
# Runs the launcher with the device files of a folder; one core for each device is enough.
LAUNCH = """
import runpy, sys
from pathlib import Path
from scripts.launcher import devices
from scripts.launcher import launch_config

devices.DEVICE_FILES, launch_config.LEAST_CORES = Path(sys.argv[1]), 1
sys.argv[1:] = sys.argv[2:]
runpy.run_path("scripts/launch.py", run_name="__main__")
"""


@pytest.fixture
def printer(tmp_path) -> Path:
    path = tmp_path / "printer.py"
    path.write_text(PRINT_ENVIRONMENT)
    return path


@pytest.mark.parametrize(
    "chosen", [{"HCCL_CONNECT_TIMEOUT": "1200"}, {"OMP_NUM_THREADS": "7"}], ids=["hccl", "threads"]
)
def test_the_launcher_sets_timeouts_and_threads_unless_the_user_does(chosen, printer, monkeypatch):
    """msrun imports MindSpore, which would set 1 thread for its workers."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    expected = {"HCCL_CONNECT_TIMEOUT": "600", "HCCL_EXEC_TIMEOUT": "3672"}
    expected |= {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), LAUNCHER_CORES: None}
    variables = {"PYTHONPATH": str(ROOT), "ZOO_BIND_CORE": "", **chosen}
    command = ["scripts/launch.py", "1", printer, "--run.device=CPU"]
    result = read_result(run_script(*command, environment=variables))
    assert result.items() >= {**expected, **chosen, "bound": False}.items()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
@pytest.mark.parametrize("binds", [True, False])
def test_ranks_on_ascend_are_bound_to_separate_cores(printer, tmp_path, binds):
    """msrun binds the cores, unless ZOO_BIND_CORE=0."""
    if binds and not (CPUSET.exists() and shutil.which("taskset")):
        pytest.skip("msrun binds nothing here")
    for number in range(2):
        (tmp_path / f"davinci{number}").touch()
    command = [sys.executable, "-c", LAUNCH, tmp_path, "2", printer, "--run.device=Ascend"]
    variables = {"PYTHONPATH": str(ROOT), "ZOO_BIND_CORE": "" if binds else "0"}
    done = run_command(command, cwd=ROOT, env={**build_env(), **variables})
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bound"] == binds
    assert (result["HCCL_CONNECT_TIMEOUT"], result["HCCL_EXEC_TIMEOUT"]) == ("600", "3672")
    if binds:
        assert result[LAUNCHER_CORES] == list_affinity()
        assert set(result["cores"].split(",")) < set(list_affinity().split(","))
    else:
        assert result["cores"] == list_affinity()


# A worker without MindSpore whose process is killed while it works, or after that.
CRASH = """
import atexit, os, signal, sys, time
from utils.cli import main_guard

def work():
    print('{"done": true}')
    if sys.argv[1] == "while_working":
        os.kill(os.getpid(), signal.SIGSEGV)

if os.environ["MS_ROLE"] == "MS_SCHED":
    time.sleep(100)
atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
main_guard("usage", work)
"""


@pytest.mark.parametrize(("when", "status"), [("while_working", 1), ("while_closing", 0)])
def test_a_crash_fails_the_job_unless_the_work_is_complete(tmp_path, when, status):
    """MindSpore sometimes crashes while it closes its connections after a completed training."""
    script = tmp_path / "crash.py"
    script.write_text(CRASH)
    done = run_script("scripts/launch.py", "2", script, when, environment={"PYTHONPATH": str(ROOT)})
    assert done.returncode == status, done.stderr
    assert ("killed by SIGSEGV" in done.stderr) == (status == 1)
    assert ('{"done": true}' in done.stdout) == (status == 0)
