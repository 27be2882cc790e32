"""Runs commands of the checkout in processes of their own, with a time limit, and ends them all.

Every command is a session of its own, so ctrl-C reaches only this process, which then ends the
command with everything that it has started.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from utils.config import ROOT
from utils.processes import die_with_parent

WORKER = ROOT / "utils" / "verify" / "worker.py"
LAUNCHER = ROOT / "scripts" / "launch.py"
LONGEST_REASON = 300  # characters
ERROR = re.compile(r"^(?:\[(?:ERROR|CRITICAL)\] .*|error: .*|\w*(?:Error|Exception): .*)", re.M)
GRACE = 5  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Ended:
    """How a process ended. `lines` are the JSON objects of its stdout, in order."""

    status: int  # negative for a signal
    lines: tuple[dict[str, Any], ...]
    reason: str  # why it failed; empty after status 0
    seconds: float

    @property
    def last(self) -> dict[str, Any]:
        return self.lines[-1] if self.lines else {}


class Runner:
    """Starts processes one after the other; `logs` is the folder for their stderr and stdout.

    `limit` is the time limit of one process in seconds. The caller must adopt orphans
    (`utils.processes.adopt_orphans`), so that whatever a process has started can be found and
    ended.
    """

    def __init__(self, logs: Path, limit: float):
        self.logs, self.limit = logs, limit

    def run_script(self, name: str, script: str, *arguments: Any) -> Ended:
        """A script of the checkout, such as tsm/train.py."""
        return self.run(name, [sys.executable, ROOT / script, *arguments])

    def run_worker(
        self, name: str, task: str, request: Mapping[str, Any], devices: int = 1
    ) -> Ended:
        """A task of `utils.verify.worker`; on several devices by scripts/launch.py."""
        device = f"--run.device={request['device']}"  # read by the launcher too
        command = [WORKER, task, json.dumps(request), device]
        launch = [LAUNCHER, devices] if devices > 1 else []
        return self.run(name, [sys.executable, *launch, *command])

    def run(self, name: str, command: Sequence[Any]) -> Ended:
        began = time.monotonic()
        with self.started(name, command) as (process, output, errors):
            try:
                status, reason = process.wait(timeout=self.limit), ""
            except subprocess.TimeoutExpired:
                status, reason = -signal.SIGKILL, f"not finished after {self.limit:g} s"
        lines = read_json_lines(output)
        if status and not reason:
            reason = describe_failure(status, errors)
        return Ended(status, lines, reason, time.monotonic() - began)

    @contextlib.contextmanager
    def started(
        self, name: str, command: Sequence[Any]
    ) -> Iterator[tuple[subprocess.Popen, Path, Path]]:
        """The process, and the files of its stdout and stderr.

        On leaving, also by an exception, nothing of the process is left.
        """
        others = set(psutil.Process().children(recursive=True))
        self.logs.mkdir(parents=True, exist_ok=True)
        output, errors = self.logs / f"{name}.out", self.logs / f"{name}.log"
        with open(output, "w") as stdout, open(errors, "w") as stderr:
            process = subprocess.Popen(
                [*map(str, command)],
                stdout=stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env=child_environment(),
                cwd=self.logs,
            )
        try:
            yield process, output, errors
        finally:
            stop_tree(process, others)


def child_environment() -> dict[str, str]:
    """This interpreter first on PATH, as msrun needs it; MindSpore's errors only."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"GLOG_v": "3", **os.environ, "PATH": path}


def stop_tree(process: subprocess.Popen, others: set[psutil.Process]) -> None:
    """Ends a process, which may still run, and all that it has started.

    A process that still runs gets SIGTERM and a moment. `others` are descendants of this process
    that were there before it.
    """
    left = set(psutil.Process().children(recursive=True)) - others
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE)
    deadline = time.monotonic() + GRACE
    while left and time.monotonic() < deadline:
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(left, timeout=1)
        left = set(psutil.Process().children(recursive=True)) - others
    process.poll()


def read_json_lines(path: Path) -> tuple[dict[str, Any], ...]:
    result = []
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):
                result.append(json.loads(line))
    return tuple(result)


def describe_failure(status: int, log: Path) -> str:
    """The status, and the last line of the log that reports an error, or else its last line."""
    how = f"ended with status {status}"
    if status < 0:
        how = f"killed by {signal.Signals(-status).name}"
    text = log.read_text(errors="replace")
    errors = ERROR.findall(text) or [line for line in text.splitlines() if line.strip()]
    return f"{how}: {errors[-1].strip()[:LONGEST_REASON]}" if errors else how
