"""Workers of the launcher: HCCL timeouts and threads, crashes after complete work."""

import os
from pathlib import Path

import pytest

from tests.helpers import read_result, run_script
from utils.cores import LAUNCHER_CORES
from utils.files import ROOT

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
