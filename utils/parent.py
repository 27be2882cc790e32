"""Processes that do not outlive the one that started them, however that ended. Linux only."""

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent() -> None:
    """From now on, also after `exec`, the end of the parent kills this process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process the parent of all its descendants whose own parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def await_adoption(parent: int) -> None:
    """Waits until `parent` is this process's parent, and ties this process to it.

    Ends the process where `parent` is gone.
    """
    while os.getppid() != parent and Path(f"/proc/{parent}").exists():
        time.sleep(0.01)
    die_with_parent()
    if os.getppid() != parent:  # also where it ended just before the line above
        os._exit(1)


def end_with(parent: int) -> None:
    """Ends this worker soon after its parent, however that ended."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()
