"""The processes of one attempt on this node: started by msrun, watched and ended by the launcher.

msrun starts the scheduler and the workers and leaves. The launcher has adopted them, so that it
learns how each one ended and the kernel ends them if the launcher is killed; scripts/worker.py is
what each of them runs first.
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
from utils.distributed.devices import HCCL_TIMEOUTS, should_bind_cores
from utils.distributed.launch_config import Job
from utils.processes import die_with_parent

SCHEDULER = "scheduler"
INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


@dataclass(frozen=True)
class Failure:
    """Why the job ends early. The weightier of two is the cause of the other one."""

    line: str
    status: int = 1
    weight: int = 0


class Workers:
    """What runs on this node."""

    def __init__(self, job: Job, port: int, logs: Path):
        self.job, self.logs = job, logs
        self.binds_cores = should_bind_cores(job.arguments, os.environ)
        self.ended: dict[int, int] = {}  # process -> exit status, negative for a signal
        self.reported: set[int] = set()  # those of them whose failure was told
        self.asked: set[int] = set()  # processes that were asked to stop
        self.first = Tail(self.log(f"worker_{job.ranks[0]}"))
        with open(self.log(f"msrun_{job.node}"), "w") as log:
            self.starter = subprocess.Popen(
                self.command(port),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # ctrl-C is for the launcher
                preexec_fn=die_with_parent,
                env=self.environment(),
            ).pid

    def environment(self) -> dict[str, str]:
        """This interpreter first on PATH, for msrun, and what the workers need to know.

        HCCL's time limits are set here only if the user has not set them.
        """
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        own = {"ZOO_LAUNCHER": os.getpid(), "ZOO_LOGS": self.logs, "ZOO_NODE": self.job.node}
        if self.binds_cores:
            own[LAUNCHER_CORES] = list_affinity()
        own = {name: str(value) for name, value in own.items()}
        return {**HCCL_TIMEOUTS, **os.environ, "PATH": path, **own}

    def command(self, port: int) -> list[str]:
        job = self.job
        table = [f"--rank_table_file={job.table}"] if job.table else []
        bind = ["--bind_core=True"] if self.binds_cores else []
        return [
            "msrun",
            f"--worker_num={job.devices * job.nodes}",
            f"--local_worker_num={job.devices}",
            f"--node_rank={job.node}",
            f"--master_addr={job.master}",
            f"--master_port={port}",
            f"--log_dir={self.logs}",
            "--join=False",
            *table,
            *bind,
            str(ROOT / "scripts" / "worker.py"),
            job.script,
            *job.arguments,
        ]

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def names(self) -> dict[int, str]:
        """Process -> worker_0, ... or scheduler, of those that have begun."""
        result = {self.starter: f"msrun_{self.job.node}"}
        ours = {*(f"worker_{rank}" for rank in self.job.ranks), SCHEDULER}
        for path in self.logs.glob("*.pid"):
            if path.stem in ours and (self.job.node == 0 or path.stem != SCHEDULER):
                result[int(path.read_text())] = path.stem
        return result

    def reap(self) -> None:
        """Learns who has ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if not process:
                    return
                self.ended[process] = os.waitstatus_to_exitcode(status)

    def failures(self) -> list[Failure]:
        """Those that have not been told yet."""
        self.reap()
        names = self.names()
        result = []
        for process, status in self.ended.items():
            if status < 0 and self.has_completed(names.get(process, "")):
                self.ended[process] = status = 0
            if status and process in names and process not in self.reported:
                self.reported.add(process)
                result.append(self.explain(names[process], status))
        if not self.reported and not self.done() and self.is_empty():
            result.append(Failure(f"no worker is left; their logs are in {self.logs}"))
        return result

    def has_completed(self, name: str) -> bool:
        """Whether the worker of this name had done its work before a signal ended it."""
        return self.log(name).with_suffix(".completed").exists()

    def is_empty(self) -> bool:
        return self.ended.get(self.starter) == 0 and not psutil.Process().children()

    def done(self) -> bool:
        """Whether all workers of this node have ended well."""
        well = {name for process, name in self.names().items() if self.ended.get(process) == 0}
        return {f"worker_{rank}" for rank in self.job.ranks} <= well

    def explain(self, name: str, status: int) -> Failure:
        path = self.log(name)
        rank = name.rpartition("_")[2]
        who = {f"worker_{rank}": f"rank {rank}", SCHEDULER: "the scheduler"}.get(name, "msrun")
        if status < 0:
            return Failure(f"{who} was killed by {signal.Signals(-status).name}; see {path}", 1, 2)
        if status in INTERRUPTED:
            return Failure(f"{who} was interrupted", status, 1)
        messages = re.findall(r"^error: .*$", path.read_text(errors="replace"), re.MULTILINE)
        if status in (1, 2) and messages:
            return Failure(f"{who}: {messages[-1]}", status, 3)
        return Failure(f"{who} ended with status {status}; see {path}")

    def stop(self) -> None:
        """Asks every worker, once, to save and end; the scheduler is needed until they have."""
        for process, name in self.names().items():
            if name != SCHEDULER and process not in self.asked and process not in self.ended:
                self.asked.add(process)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)

    def end(self) -> None:
        """Kills what is left, also what workers have started, and waits for it."""
        deadline = time.monotonic() + 30  # a process that waits for a dead disk cannot be killed
        left = psutil.Process().children(recursive=True)
        while left and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.02)
            self.reap()
            left = psutil.Process().children(recursive=True)


class Tail:
    """Copies a growing log to stderr, without its JSON lines, of which it keeps the last."""

    def __init__(self, path: Path):
        self.path, self.position, self.rest, self.result = path, 0, "", ""

    def show(self) -> None:
        if not self.path.exists():
            return
        with open(self.path, errors="replace") as log:
            log.seek(self.position)
            text = self.rest + log.read()
            self.position = log.tell()
        *lines, self.rest = text.split("\n")
        for line in lines:
            if line.startswith("{"):
                self.result = line
            else:
                print(line, file=sys.stderr, flush=True)
