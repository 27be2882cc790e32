"""Jobs for the tests of scripts/executors/process_pool.py."""

import os
import signal
import time

FATAL = 5


def crash_or_square(number: int) -> int:
    """Ends its process with a segmentation fault for the number FATAL."""
    time.sleep(0.02)
    if number == FATAL:
        os.kill(os.getpid(), signal.SIGSEGV)
    return number**2


def refuse_three(number: int) -> int:
    if number == 3:
        raise ValueError("three is refused")
    return number
