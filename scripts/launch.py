#!/usr/bin/env python3
"""Runs a script on several devices with msrun, and makes it behave like one process.

    python scripts/launch.py [--restarts=N] DEVICES SCRIPT [arguments]

DEVICES counts this node's. NODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, or RANK_TABLE_FILE,
name the other nodes. The first worker's log is shown on stderr, the result of rank 0 on stdout of
node 0; the logs of all workers stay in out/logs. SIGTERM and ctrl-C reach the workers as SIGTERM.

ASCEND_RT_VISIBLE_DEVICES=4,5,6,7, or CUDA_VISIBLE_DEVICES, chooses devices of this node. On Ascend
each worker is bound to its own part of the cores; ZOO_BIND_CORE=0 leaves them unbound.

A worker that fails ends the job on this node, and a line names the worker. MindSpore's scheduler
then ends the other nodes (docs/many_devices.md says when). With --restarts a job on one node begins
again, at most N times, each time with the logs in a folder of its own; a user error and an
interruption end it for good. Exit status: one process's.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import contextlib
import os
import re
import signal
import subprocess
import time
from typing import NamedTuple, Optional

import psutil

from scripts.launcher.launch_config import HCCL_TIMEOUTS, Job, divide_cores, read_job, reserve_port
from utils import signals
from utils.cli import exit_on_broken_pipe, prepare_streams, show_usage
from utils.cores import LAUNCHER_CORES, list_affinity
from utils.files import ROOT, get_base_folder
from utils.messages import print_line
from utils.processes import adopt_orphans, die_with_parent

GRACE = 2  # seconds for failures that follow the first one: they may be its cause
SCHEDULER = "scheduler"
# MindSpore prints two such lines at the end of a good run, at every log level.
END_OF_CONNECTION = "] Event base dispatch success!"
KILL_TIMEOUT = 30  # seconds; a process that waits for a dead disk cannot be killed


def main() -> int:
    """Runs attempt after attempt, until one ends well or no restart is left."""
    prepare_streams()
    show_usage(__doc__)
    try:
        job = read_job(sys.argv[1:], os.environ)
        adopt_orphans()
    except ValueError as error:
        print_line(f"error: {error}")
        return 2
    received: list[tuple[int, float]] = []  # signals and their times
    for number in signals.list_watched():
        signal.signal(number, lambda number, _: received.append((number, time.monotonic())))
    signals.release()
    logs = get_base_folder() / "out" / "logs"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    name += f"-node-{job.node}" if job.nodes > 1 else ""
    for attempt in range(job.restarts + 1):
        if attempt:
            print_line(f"restart {attempt} of {job.restarts}, from the last checkpoint")
        folder = logs / (f"{name}-restart-{attempt}" if attempt else name)
        failure, result = run_attempt(job, folder, received)
        if failure:
            print_line(failure.line)
        if not failure or failure.status != 1 or received:
            break
    if not failure and job.node == 0 and result:
        print(result, flush=True)
    if any(number == signal.SIGINT for number, _ in received):
        return 128 + signal.SIGINT
    return failure.status if failure else 0


class Failure(NamedTuple):
    """Why the job ends early. Of several ones the most severe is the cause of the others."""

    line: str
    status: int = 1
    severity: int = 0


def run_attempt(
    job: Job, logs: Path, received: list[tuple[int, float]]
) -> tuple[Optional[Failure], str]:
    """Runs the job once: until the workers of this node have ended well, or why they cannot.

    The second value is the result. On a single node the scheduler has any free port.
    """
    holder = None if job.port else reserve_port()
    group = WorkerGroup(job, holder.getsockname()[1] if holder else job.port, logs)
    failures: list[Failure] = []
    deadline = float("inf")
    try:
        while not group.is_done() and time.monotonic() < deadline:
            time.sleep(0.1)
            group.show_log()
            own = group.poll()
            if received:  # however the workers end now, it is not a failure of theirs
                group.terminate()
                is_second = received[-1][1] - received[0][1] > signals.DEBOUNCE
                line = f"the job was interrupted{'; ended at once' if is_second else ''}"
                interruption = Failure(line, 128 + received[0][0], 4)
                own = [interruption] if own or is_second else []
                deadline = 0 if is_second else deadline
            failures += own
            if failures:
                deadline = min(deadline, time.monotonic() + GRACE)
    finally:
        # What workers have started is killed too.
        last = time.monotonic() + KILL_TIMEOUT
        while (left := psutil.Process().children(recursive=True)) and time.monotonic() < last:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=0.1)
        group.show_log()
        if holder:
            holder.close()
    # Of equal ones the first
    return max(failures, key=lambda failure: failure.severity, default=None), group.result


class WorkerGroup:
    """msrun, the workers and, on node 0, the scheduler, of one attempt.

    msrun starts the scheduler and the workers, writes their logs, and ends. The launcher becomes
    their parent: it gets the exit status of each process, and the kernel ends them if the launcher
    is killed. Each of them runs scripts/worker.py first.

    `msrun --join=True` would do without the launcher: the workers of other nodes are found by
    MindSpore's scheduler in both cases. But it ends with 1 for every failure, kills workers at
    ctrl-C, before they have saved, and leaves them behind if SIGTERM ends it, as at the time limit
    of Slurm.
    """

    def __init__(self, job: Job, port: int, logs: Path):
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        lowest = job.node * job.devices
        self.workers = [f"worker_{rank}" for rank in range(lowest, lowest + job.devices)]
        self.names = [*self.workers, *([] if job.node else [SCHEDULER])]
        # The scheduler takes four seconds to see that nobody is left. Of several nodes, the others
        # need it until then.
        self.needed = self.workers if job.nodes == 1 else self.names
        self.statuses: dict[str, int] = {}  # name -> exit status, negative for a signal
        self.signalled: set[str] = set()  # names of the processes that got SIGTERM
        self.position = 0  # in the log of the first worker
        self.result = ""
        is_bound, variables = divide_cores(job, os.environ)
        command = ["msrun", f"--worker_num={job.devices * job.nodes}"]
        command += [f"--local_worker_num={job.devices}", f"--node_rank={job.node}"]
        command += [f"--master_addr={job.master}", f"--master_port={port}"]
        command += [f"--cluster_time_out={job.timeout}", f"--log_dir={logs}", "--join=False"]
        command += [f"--rank_table_file={job.table}"] if job.table else []
        command += ["--bind_core=True"] if is_bound else []
        environ = {
            # Unless the user has set them:
            **HCCL_TIMEOUTS,
            **variables,
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "ZOO_LAUNCHER": str(os.getpid()),
            "ZOO_LOGS": str(logs),
            "ZOO_NODE": str(job.node),
            **({LAUNCHER_CORES: list_affinity()} if is_bound else {}),
        }
        with open(logs / "msrun.log", "w") as log:
            self.msrun = subprocess.Popen(
                [*command, str(ROOT / "scripts" / "worker.py"), job.script, *job.arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # ctrl-C is for the launcher
                preexec_fn=die_with_parent,
                env=environ,
            ).pid

    def is_done(self) -> bool:
        """Whether all workers of this node have ended well."""
        return all(self.statuses.get(name) == 0 for name in self.needed)

    def list_processes(self) -> dict[int, str]:
        """Process -> worker_0, ..., scheduler or msrun, of those of this node that have begun."""
        files = [path.name.split(".") for path in self.logs.glob("*.pid")]
        processes = {int(process): name for name, process, _ in files if name in self.names}
        return {**processes, self.msrun: "msrun"}

    def poll(self) -> list[Failure]:
        """The failures since the last call."""
        failures = []
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                name = self.list_processes().get(ended[0])
                if name is None:  # a worker's own child
                    continue
                status = os.waitstatus_to_exitcode(ended[1])
                if status < 0 and (self.logs / f"{name}.completed").exists():
                    status = 0  # see utils.processes.record_completion
                self.statuses[name] = status
                path = self.logs / f"{name}.log"
                who = {SCHEDULER: "the scheduler"}.get(name, name.replace("worker_", "rank "))
                text = path.read_text(errors="replace") if status in (1, 2) else ""
                errors = re.findall(r"^error: .*$", text, re.MULTILINE)
                if status < 0:
                    line = f"{who} was killed by {signal.Signals(-status).name}; see {path}"
                    failures.append(Failure(line, severity=2))
                elif status - 128 in signals.EVENTS:
                    failures.append(Failure(f"{who} was interrupted", status, severity=1))
                elif errors:
                    failures.append(Failure(f"{who}: {errors[-1]}", status, severity=3))
                elif status:
                    failures.append(Failure(f"{who} ended with status {status}; see {path}"))
        except ChildProcessError:  # no process is left
            if not self.is_done() and not any(self.statuses.values()):
                self.statuses["worker"] = 1  # returned once
                failures.append(Failure(f"no worker is left; their logs are in {self.logs}"))
        return failures

    def terminate(self) -> None:
        """Sends SIGTERM to each worker once, which then saves and ends; they need the scheduler."""
        for process, name in self.list_processes().items():
            if name not in {SCHEDULER, *self.signalled, *self.statuses}:
                self.signalled.add(name)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)

    def show_log(self) -> None:
        """Copies the whole new lines of the first worker's log to stderr.

        Except MindSpore's lines about the end of its connections, and JSON objects; the last of
        them is the `result`.
        """
        path = self.logs / f"{self.workers[0]}.log"
        if not path.exists():
            return
        with open(path, "rb") as log:
            log.seek(self.position)
            while (line := log.readline()).endswith(b"\n"):
                self.position = log.tell()
                text = line.decode(errors="replace").rstrip("\n")
                if text.startswith("{"):
                    self.result = text
                elif not text.endswith(END_OF_CONNECTION):
                    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    with exit_on_broken_pipe():
        sys.exit(main())
