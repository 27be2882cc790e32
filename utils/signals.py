"""Ctrl-C (SIGINT), SIGTERM, and SIGHUP of a closed terminal, while MindSpore is busy.

Python calls its handlers only when the interpreter runs again. A graph that compiles, or a long
kernel, can delay that for a minute. While a graph runs, MindSpore installs its own handlers, which
turn ctrl-C into SIGTERM. An exception in the middle of MindSpore's import aborts the process. So
`watch`, which runs first, blocks these signals in all threads, and one thread waits for them.
"""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Callable

RELEASE = signal.SIGURG  # ends the thread that waits; without a handler it has no effect
DEBOUNCE = 1.0  # seconds; `timeout` and batch systems signal a process, and then its group
# Of a rank, which gets the signal of the batch system and later the same one from the launcher. A
# busy host delays the latter. The launcher kills its ranks if it gets a second signal itself.
RANK_DEBOUNCE = 10.0
EVENTS: dict[int, str] = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "terminal closed",
}


def list_watched() -> list[int]:
    """The signals that this process takes; `nohup` has made it ignore SIGHUP."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in EVENTS if number != signal.SIGHUP or not is_ignored]


def end_command(number: int) -> None:
    """The default handler. Ends the process at once: every file is either complete or absent."""
    if "ZOO_LAUNCHER" in os.environ:  # which says it for all ranks
        os._exit(128 + number)
    end_process(128 + number, f"{EVENTS[number]}; nothing was lost")


handlers: list[Callable[[int], None]] = [end_command]  # only the last one is called
received: list[int] = []  # signals that a handler was called with
watchers: list[threading.Thread] = []  # the thread that waits, once there is one
unfinished: set[str] = set()  # folders of files that are being written, which a signal deletes


class StopRequestError(Exception):
    """A signal stopped the work; there is no result."""


@contextmanager
def handle_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Inside, a signal calls `on_signal(number)` in another thread; a second one ends at once."""
    handlers.append(on_signal)
    try:
        yield
    finally:
        handlers.pop()
        received.clear()


def watch() -> None:
    """Call this before MindSpore and numpy start threads: they inherit the blocked signals.

    A second call does nothing.
    """
    if watchers:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {*list_watched(), RELEASE})
    watchers.append(threading.Thread(target=wait_for_signals, daemon=True))
    if os.environ.get("MS_ROLE") != "MS_SCHED":  # ranks need the scheduler until they have saved
        watchers[0].start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {RELEASE})  # the thread still blocks it
    os.register_at_fork(after_in_child=unblock_signals)  # SIGTERM ends worker processes


def block() -> None:
    """Blocks the signals in this thread again, if they are watched."""
    if watchers and watchers[0].is_alive():
        signal.pthread_sigmask(signal.SIG_BLOCK, list_watched())


def release() -> None:
    """Leaves the signals to handlers of Python, which the caller has set, from now on."""
    if watchers and watchers[0].is_alive():
        signal.pthread_kill(watchers[0].ident, RELEASE)
        watchers[0].join()
        unblock_signals()


def unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, list_watched())


def wait_for_signals() -> None:
    watched = list_watched()
    number = signal.sigwait({*watched, RELEASE})
    if number == RELEASE:
        return
    first_time = time.monotonic()
    received.append(number)
    handlers[-1](number)
    again = signal.sigwait(watched)
    debounce = RANK_DEBOUNCE if "ZOO_LAUNCHER" in os.environ else DEBOUNCE
    while time.monotonic() - first_time < debounce:
        again = signal.sigwait(watched)
    end_process(128 + again, f"{EVENTS[again]} again; ended at once, what was saved is intact")


def end_process(status: int, line: str) -> None:
    """Ends the process at once, whatever MindSpore's threads are doing."""
    try:
        for folder in list(unfinished):
            shutil.rmtree(folder, ignore_errors=True)
        print(line, file=sys.stderr, flush=True)
    finally:
        os._exit(status)
