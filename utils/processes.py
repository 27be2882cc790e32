"""Processes that end with their parent process, their memory, and calls that may not end.

Linux only.
"""

import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Callable

from utils.signals import handle_signals, received

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LONGEST_REASON = 300  # characters of a line of a log
ERROR_LINE = re.compile(r"\[(?:ERROR|CRITICAL)\] |error: |\w*(?:Error|Exception): ")


def die_with_parent() -> None:
    """From now on, also after `exec`, the kernel kills this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process the parent of all its descendants whose own parent ends.

    Raises ValueError if the system refuses that, as some emulators do.
    """
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1):
        raise ValueError("PR_SET_CHILD_SUBREAPER is refused here: use scripts/launch_mpi.py")


def wait_until_reparented(parent: int) -> None:
    """Waits until `parent` is this process's parent; from then on its end kills this process.

    Ends the process if `parent` is gone.
    """
    while os.getppid() != parent and Path(f"/proc/{parent}").exists():
        time.sleep(0.01)
    die_with_parent()
    if os.getppid() != parent:  # perhaps it ended just before the line above
        os._exit(1)


def record_completion() -> None:
    """Records for the launcher, if it started this process, that the work is complete and saved.

    MindSpore closes its connections and threads later, after Python's shutdown. It sometimes
    crashes then with a segmentation fault (2.10.0 on a CPU: 2 of about 600 workers on a busy
    machine). Such a crash must not fail a completed job.
    """
    is_worker = os.environ.get("MS_ROLE") == "MS_WORKER"
    if is_worker and os.environ.get("ZOO_LAUNCHER") == str(os.getppid()):
        (Path(os.environ["ZOO_LOGS"]) / f"worker_{os.environ['MS_NODE_ID']}.completed").touch()


def exit_when_parent_dies(parent: int) -> None:
    """Ends this process soon after its parent, however that ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def read_peak_memory() -> float:
    """The largest memory that this program has held so far, in GB.

    `ru_maxrss` of getrusage is kept across `exec`, so it includes the memory of the process that
    started this program. VmHWM does not.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / 1e9


@contextmanager
def pass_on_signals() -> Iterator[Callable[[subprocess.Popen], None]]:
    """Inside, signals go to the processes that are given to the function that this yields.

    They get those too that came before.
    """
    processes: list[subprocess.Popen] = []

    def pass_on(number: int) -> None:
        for process in processes:
            process.send_signal(number)

    def add(process: subprocess.Popen) -> None:
        processes.append(process)
        for number in received:
            process.send_signal(number)

    with handle_signals(pass_on):
        yield add


def describe_exit(status: int, log: Sequence[str] = ()) -> str:
    """How a process ended (`status` < 0: by a signal), and the last error, or line, of its log."""
    how = f"ended with status {status}"
    if status < 0:
        how = f"was killed by {signal.Signals(-status).name}"
    lines = [line.strip() for line in log if line.strip()]
    errors = [line for line in lines if ERROR_LINE.match(line)] or lines
    return f"{how}: {errors[-1][:LONGEST_REASON]}" if errors else how
