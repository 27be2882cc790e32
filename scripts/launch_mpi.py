#!/usr/bin/env python3
"""One of the processes that mpirun starts: runs a script as a worker of MindSpore's own cluster.

    mpirun -n 16 --host a:8,b:8 -x MASTER_ADDR=a python scripts/launch_mpi.py SCRIPT [arguments]

MindSpore needs no MPI library for this: mpirun starts the processes, numbers them and ends all if
one fails; rank 0, on MASTER_ADDR, also starts the scheduler at MASTER_PORT (8118). Rank 0 keeps the
terminal, the logs of the others go to out/logs/mpi-(number of the job).
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import contextlib
import os
import signal
import subprocess
import time

from scripts.launcher.launch_config import find_script, listen, read_mpi_environment
from utils import signals
from utils.cli import show_usage
from utils.files import get_base_folder
from utils.messages import print_line
from utils.processes import die_with_parent


def main() -> int:
    show_usage(__doc__)
    try:
        environ = read_mpi_environment(os.environ, "MS_WORKER")
        rank = int(environ["RANK_ID"])
        if not sys.argv[1:]:
            raise ValueError("expected SCRIPT [arguments]")
        command = [sys.executable, find_script(sys.argv[1]), *sys.argv[2:]]
        if rank == 0:
            listen(environ["MS_SCHED_HOST"], int(environ["MS_SCHED_PORT"])).close()
    except ValueError as error:
        print_line(f"error: {error}")
        return 2
    job = os.environ.get("PMIX_NAMESPACE", os.getppid())
    logs = get_base_folder() / "out" / "logs" / f"mpi-{job}"
    logs.mkdir(parents=True, exist_ok=True)
    scheduler = None  # it and the worker die with this process
    if rank == 0:
        own = read_mpi_environment(os.environ, "MS_SCHED")
        with open(logs / "scheduler.log", "w") as log:
            scheduler = subprocess.Popen(
                command, stdout=log, stderr=log, env=own, preexec_fn=die_with_parent
            )
    with open(logs / f"worker_{rank}.log", "w") if rank else contextlib.nullcontext() as log:
        worker = subprocess.Popen(
            command, stdout=log, stderr=log, env=environ, preexec_fn=die_with_parent
        )
    for number in signals.list_watched():
        signal.signal(number, lambda number, frame: worker.send_signal(number))
    signals.release()
    while worker.poll() is None:
        if scheduler and scheduler.poll():
            print_line(f"the scheduler is gone; its log is in {logs}")
            worker.kill()
        time.sleep(0.1)
    status = worker.returncode
    if status < 0:
        print_line(f"rank {rank} was killed by {signal.Signals(-status).name}")
    elif status:
        print_line(f"rank {rank} ended with status {status}; the logs are in {logs}")
    elif scheduler:
        with contextlib.suppress(subprocess.TimeoutExpired):
            scheduler.wait(timeout=60)  # it ends when all ranks have left it
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
