"""Ctrl-C and SIGTERM while the framework is busy.

Python's own handlers wait until the interpreter runs again, which a graph that compiles or a long
kernel can delay for a minute. A thread that reads the wake-up pipe hears of a signal at once.
MindData's threads put handlers of their own in place when a pipeline starts, which turn ctrl-C into
SIGTERM and that into an end: `hold` takes the signals back. A ctrl-C between two calls may still
arrive as SIGTERM; the run saves and stops all the same, with SIGTERM's exit status.
"""

import os
import signal
import sys
import threading
from typing import Callable

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """`with Signals(on_signal):` calls `on_signal(number)` in a thread; a second one ends all."""

    def __init__(self, on_signal: Callable[[int], None]):
        self.on_signal = on_signal
        self.count = 0

    def __enter__(self) -> "Signals":
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self.before = {number: signal.getsignal(number) for number in WATCHED}
        self.hold()
        self.wakeup = signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        threading.Thread(target=self.listen, daemon=True).start()
        return self

    def hold(self) -> None:
        """Watches the signals, whoever else has taken them; from the main thread only."""
        for number in WATCHED:
            signal.signal(number, ignore)

    def __exit__(self, *exception) -> None:
        signal.set_wakeup_fd(self.wakeup)
        for number, handler in self.before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        os.close(self.writer)  # ends the thread

    def listen(self) -> None:
        while True:
            byte = os.read(self.reader, 1)
            if not byte:
                return os.close(self.reader)
            if byte[0] in WATCHED:
                self.count += 1
                if self.count > 1:
                    end(130, "interrupted again; ended at once, the last checkpoint is intact")
                self.on_signal(byte[0])


def ignore(number, frame) -> None:
    """Replaces the default, which would raise in the middle of anything."""


def end(status: int, line: str) -> None:
    """Ends the process at once, whatever the framework's threads are doing."""
    print(line, file=sys.stderr, flush=True)
    os._exit(status)
