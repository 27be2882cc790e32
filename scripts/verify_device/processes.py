"""Runs commands of the checkout in separate processes, with a time limit, and ends them all.

Every command is a separate session, so ctrl-C reaches only this process, which then ends the
command and all processes that it has started.
"""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from scripts.verify_device.report import FAILED, Finding
from utils.config import ROOT
from utils.processes import describe_exit, die_with_parent

GRACE = 5  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class ProcessResult:
    """The result of a process. `lines` are the JSON objects of its stdout, in order."""

    name: str  # of its log
    status: int  # negative for a signal
    lines: tuple[dict[str, Any], ...]
    reason: str  # why it failed; empty after status 0

    @property
    def last(self) -> dict[str, Any]:
        return self.lines[-1] if self.lines else {}

    def build_failure(self, subject: str = "", reason: str = "") -> Finding:
        """The finding FAILED of a process without a result."""
        reason = reason or self.reason or "no result"
        text = f"{subject}: {reason}" if subject else reason
        return Finding(FAILED, text, f"the log is logs/{self.name}.log")


class Runner:
    """Starts processes one after the other; `logs` is the folder for their stderr and stdout.

    `limit` is the time limit of one process in seconds. The caller must adopt orphans
    (`utils.processes.adopt_orphans`), so that whatever a process has started can be found and
    ended.
    """

    def __init__(self, logs: Path, limit: float):
        self.logs = logs
        self.limit = limit

    def run_script(self, name: str, script: str, *arguments: Any) -> ProcessResult:
        """A script of the checkout, such as tsm/train.py."""
        return self.run(name, [sys.executable, ROOT / script, *arguments])

    def run(self, name: str, command: Sequence[Any]) -> ProcessResult:
        with self.start_process(name, command) as (process, output, errors):
            try:
                status = process.wait(timeout=self.limit)
                reason = ""
            except subprocess.TimeoutExpired:
                status = -signal.SIGKILL
                reason = f"not finished after {self.limit:g} s"
        if status and not reason:
            reason = read_reason(status, errors)
        return ProcessResult(name, status=status, lines=read_json_lines(output), reason=reason)

    @contextlib.contextmanager
    def start_process(
        self, name: str, command: Sequence[Any]
    ) -> Iterator[tuple[subprocess.Popen, Path, Path]]:
        """The process, and the files of its stdout and stderr.

        At the end of the block, also after an exception, it ends all processes of the command.
        """
        others = list_descendants()
        self.logs.mkdir(parents=True, exist_ok=True)
        output = self.logs / f"{name}.out"
        errors = self.logs / f"{name}.log"
        with open(output, "w") as stdout, open(errors, "w") as stderr:
            process = subprocess.Popen(
                [*map(str, command)],
                stdout=stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,
                cwd=self.logs,
            )
        try:
            yield process, output, errors
        finally:
            stop_tree(process, others)


def stop_tree(process: subprocess.Popen, others: set[psutil.Process]) -> None:
    """Ends a process, which may still run, and all its descendants.

    A process that still runs gets SIGTERM first. `others` are descendants of this process that
    started before it.
    """
    descendants = list_descendants() - others
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE)
    deadline = time.monotonic() + GRACE
    while descendants and time.monotonic() < deadline:
        for descendant in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                descendant.kill()
        psutil.wait_procs(descendants, timeout=1)
        descendants = list_descendants() - others
    process.poll()


def list_descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def read_json_lines(path: Path) -> tuple[dict[str, Any], ...]:
    result = []
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):
                result.append(json.loads(line))
    return tuple(result)


def read_reason(status: int, log: Path) -> str:
    """Why a process failed: its exit status, and the last error in its log."""
    return describe_exit(status, log.read_text(errors="replace").splitlines())
