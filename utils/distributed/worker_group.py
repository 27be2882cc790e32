"""The processes of one attempt on this node: started by msrun, watched and ended by the launcher.

msrun starts the scheduler and the workers, and ends. The launcher becomes their parent: it gets the
exit status of each process, and the kernel ends them if the launcher is killed. Each of them runs
scripts/worker.py first.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from utils.config import ROOT
from utils.cpu_cores import LAUNCHER_CORES, list_affinity
from utils.distributed.launch_config import HCCL_TIMEOUTS, Job, should_bind_cores
from utils.processes import die_with_parent

SCHEDULER = "scheduler"
KILL_TIMEOUT = 30  # seconds; a process that waits for a dead disk cannot be killed


@dataclass(frozen=True)
class Failure:
    """Why the job ends early. Of several ones the most severe is the cause of the others."""

    line: str
    status: int = 1
    severity: int = 0


class WorkerGroup:
    """msrun, the workers and, on node 0, the scheduler."""

    def __init__(self, job: Job, port: int, logs: Path):
        self.job, self.logs = job, logs
        self.workers = {f"worker_{rank}" for rank in job.ranks}
        self.statuses: dict[int, int] = {}  # process -> exit status, negative for a signal
        self.reported: set[int] = set()  # processes whose failure poll() has returned
        self.signalled: set[int] = set()  # processes that got SIGTERM
        self.tail = LogTail(logs / f"worker_{job.ranks[0]}.log")
        binds = should_bind_cores(job.arguments, os.environ)
        with open(logs / f"msrun_{job.node}.log", "w") as log:
            self.msrun = subprocess.Popen(
                self.command(port, binds),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # ctrl-C is for the launcher
                preexec_fn=die_with_parent,
                env=self.environment(binds),
            ).pid

    def environment(self, binds: bool) -> dict[str, str]:
        """This interpreter first on PATH, for msrun, and what the workers need to know.

        HCCL's time limits are set here only if the user has not set them.
        """
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        cores = {LAUNCHER_CORES: list_affinity()} if binds else {}
        own = {"ZOO_LAUNCHER": os.getpid(), "ZOO_LOGS": self.logs, "ZOO_NODE": self.job.node}
        own = {name: str(value) for name, value in own.items()}
        return {**HCCL_TIMEOUTS, **os.environ, "PATH": path, **own, **cores}

    def command(self, port: int, binds: bool) -> list[str]:
        job = self.job
        return [
            "msrun",
            f"--worker_num={job.devices * job.nodes}",
            f"--local_worker_num={job.devices}",
            f"--node_rank={job.node}",
            f"--master_addr={job.master}",
            f"--master_port={port}",
            f"--log_dir={self.logs}",
            "--join=False",
            *([f"--rank_table_file={job.table}"] if job.table else []),
            *(["--bind_core=True"] if binds else []),
            str(ROOT / "scripts" / "worker.py"),
            job.script,
            *job.arguments,
        ]

    def names(self) -> dict[int, str]:
        """Process -> worker_0, ... or scheduler, of those of this node that have begun."""
        files = [path.name.split(".") for path in self.logs.glob("*.pid")]
        ours = {*self.workers, SCHEDULER} if self.job.node == 0 else self.workers
        return {self.msrun: "msrun"} | {int(pid): name for name, pid, _ in files if name in ours}

    def poll(self) -> list[Failure]:
        """The failures since the last call."""
        failures, has_children = [], True
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self.statuses[ended[0]] = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            has_children = False
        for process, name in self.names().items():
            status = self.statuses.get(process, 0)
            if status < 0 and (self.logs / f"{name}.completed").exists():
                self.statuses[process] = status = 0  # see utils.processes.record_completion
            if status and process not in self.reported:
                self.reported.add(process)
                failures.append(self.describe(name, status))
        if not has_children and not self.reported and not self.is_done():
            self.reported.add(0)
            failures.append(Failure(f"no worker is left; their logs are in {self.logs}"))
        return failures

    def is_done(self) -> bool:
        """Whether all workers of this node have ended well."""
        names = self.names().items()
        return self.workers <= {name for pid, name in names if self.statuses.get(pid) == 0}

    def describe(self, name: str, status: int) -> Failure:
        path = self.logs / f"{f'msrun_{self.job.node}' if name == 'msrun' else name}.log"
        who = name.replace("worker_", "rank ").replace(SCHEDULER, "the scheduler")
        if status < 0:
            return Failure(f"{who} was killed by {signal.Signals(-status).name}; see {path}", 1, 2)
        if status in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            return Failure(f"{who} was interrupted", status, 1)
        errors = re.findall(r"^error: .*$", path.read_text(errors="replace"), re.MULTILINE)
        if status in (1, 2) and errors:
            return Failure(f"{who}: {errors[-1]}", status, 3)
        return Failure(f"{who} ended with status {status}; see {path}")

    def terminate(self) -> None:
        """Sends SIGTERM to each worker once, which then saves and ends; they need the scheduler."""
        for process, name in self.names().items():
            if name != SCHEDULER and process not in self.signalled | self.statuses.keys():
                self.signalled.add(process)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)

    def kill(self) -> None:
        """Kills what is left, also what workers have started, and waits for it."""
        deadline = time.monotonic() + KILL_TIMEOUT
        while time.monotonic() < deadline:
            processes = psutil.Process().children(recursive=True)
            if not processes:
                return
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, timeout=0.1)


class LogTail:
    """Copies a growing log to stderr, except JSON objects, the last of which is the `result`."""

    def __init__(self, path: Path):
        self.path, self.position, self.result = path, 0, ""

    def show(self) -> None:
        """Copies the whole lines since the last call."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as log:
            log.seek(self.position)
            while (line := log.readline()).endswith(b"\n"):
                self.position = log.tell()
                text = line.decode(errors="replace").rstrip("\n")
                if text.startswith("{"):
                    self.result = text
                else:
                    print(text, file=sys.stderr, flush=True)
