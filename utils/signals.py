"""Ctrl-C and SIGTERM while the framework is busy.

Python's handlers wait until the interpreter runs again, which a graph that compiles or a long
kernel can delay for a minute. MindSpore puts handlers of its own in place while a graph runs, which
turn ctrl-C into SIGTERM. So no thread takes these signals by a handler at all: they are blocked,
and one thread waits for them.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Callable

WATCHED = (signal.SIGINT, signal.SIGTERM)
ECHO = 1.0  # seconds; `timeout` and batch systems tell a process, and then its group
WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def end_command(number: int) -> None:
    """What a signal does where nothing else is said: all files are written whole or not at all."""
    end(128 + number, f"{WORDS[number]}; nothing was lost")


reactions: list[Callable[[int], None]] = [end_command]  # the last one is in force
received: list[int] = []  # signals that a reaction was called with


class Stopped(Exception):
    """Work was left because a signal asked for it; there is no result."""


@contextmanager
def reacting(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Inside, a signal calls `on_signal(number)`, in another thread; a second one ends all."""
    reactions.append(on_signal)
    try:
        yield
    finally:
        reactions.pop()
        received.clear()


def watch() -> None:
    """Called once, before the framework starts threads: they inherit what is blocked here."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    os.register_at_fork(after_in_child=release)  # worker processes die of SIGTERM as ever
    renew_threads()
    threading.Thread(target=listen, daemon=True).start()


def release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)


def renew_threads() -> None:
    """Forks once: OpenBLAS, loaded with numpy, ends its threads at that and makes new ones later.

    Those it has by now do not block the signals, and would be given them.
    """
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def listen() -> None:
    number = signal.sigwait(WATCHED)
    heard = time.monotonic()
    received.append(number)
    reactions[-1](number)
    again = signal.sigwait(WATCHED)
    while time.monotonic() - heard < ECHO:
        again = signal.sigwait(WATCHED)
    end(128 + again, f"{WORDS[again]} again; ended at once, what was saved is intact")


def end(status: int, line: str) -> None:
    """Ends the process at once, whatever the framework's threads are doing."""
    print(line, file=sys.stderr, flush=True)
    os._exit(status)
