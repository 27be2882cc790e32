"""One of the processes that mpirun starts: runs a script as a worker of MindSpore's own cluster.

    mpirun -n 16 --host a:8,b:8 -x MASTER_ADDR=a python scripts/launch_mpi.py SCRIPT [arguments]

MindSpore needs no MPI library for this: mpirun starts the processes, says who they are and ends all
if one fails; rank 0, on MASTER_ADDR, also starts the scheduler at MASTER_PORT (8118). Rank 0 keeps
the terminal, the logs of the others go to out/logs/mpi-(number of the job).
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.cli import show_usage
from utils.config import get_base_folder
from utils.distributed.launch_config import listen, script_file
from utils.distributed.mpi import RankPosition, for_mindspore, read_rank_position
from utils.processes import die_with_parent


def main() -> int:
    show_usage(__doc__)
    try:
        position = read_rank_position(os.environ)
        if not sys.argv[1:]:
            raise ValueError("expected SCRIPT [arguments]")
        command = [sys.executable, script_file(sys.argv[1]), *sys.argv[2:]]
        if position.rank == 0:
            check_port(position)
    except ValueError as error:
        say(f"error: {error}")
        return 2
    if position.rank == 0 and len(os.sched_getaffinity(0)) == 1 < os.cpu_count():
        say("mpirun has bound this rank to one core; --bind-to none gives it all of them")
    logs = (
        get_base_folder() / "out" / "logs" / f"mpi-{os.environ.get('PMIX_NAMESPACE', os.getppid())}"
    )
    logs.mkdir(parents=True, exist_ok=True)
    scheduler = None
    if position.rank == 0:
        scheduler = start(command, position, "MS_SCHED", logs / "scheduler.log")
    worker = start(
        command,
        position,
        "MS_WORKER",
        logs / f"worker_{position.rank}.log" if position.rank else None,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: worker.send_signal(number))
    while worker.poll() is None:
        if scheduler and scheduler.poll():
            say(f"the scheduler is gone; its log is in {logs}")
            worker.kill()
        time.sleep(0.1)
    status = worker.returncode
    if status < 0:
        say(f"rank {position.rank} was killed by {signal.Signals(-status).name}")
    elif status:
        say(f"rank {position.rank} ended with status {status}; the logs are in {logs}")
    if scheduler and status == 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            scheduler.wait(timeout=60)  # it ends when all ranks have left it
    return status if status >= 0 else 128 - status


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def check_port(location: RankPosition) -> None:
    try:
        listen(location.master, location.port).close()
    except OSError as error:
        raise ValueError(
            f"MASTER_ADDR={location.master} MASTER_PORT={location.port}: {error.strerror}; "
            "rank 0 must be able to listen there"
        ) from None


def start(
    command: list[str], location: RankPosition, role: str, log: Optional[Path]
) -> subprocess.Popen:
    """The script in a process of its own, which dies with this one."""
    with open(log, "w") if log else contextlib.nullcontext() as target:
        return subprocess.Popen(
            command,
            stdout=target,
            stderr=target,
            env=for_mindspore(location, os.environ, role),
            preexec_fn=die_with_parent,
        )


if __name__ == "__main__":
    sys.exit(main())
