"""The progress of a long command: a bar on a terminal, else a line every minute on stderr.

A bar in a file is one line of thousands of characters, and nothing at all is as if it hung.
"""

import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Optional

from tqdm import tqdm

from utils.messages import print_line

INTERVAL = 60.0  # seconds between two lines


class Progress:
    """Counts the done of `total` jobs; `unit` is their plural. `hidden`: prints nothing.

    The bar disappears at the end unless `leave`. `initial` jobs were done before. Without
    `prints_lines` there is a bar or nothing.
    """

    def __init__(
        self,
        total: int,
        name: str,
        unit: str,
        leave: bool = False,
        hidden: bool = False,
        initial: int = 0,
        prints_lines: bool = True,
    ) -> None:
        disable = True if hidden else None  # None: tqdm looks whether stderr is a terminal
        self.bar = tqdm(
            total=total,
            desc=name,
            unit=f" {unit}",
            leave=leave,
            disable=disable,
            initial=initial,
        )
        self.total = total
        self.name = name
        self.unit = unit
        self.prints_lines = prints_lines and self.bar.disable and not hidden
        self.done = 0
        self.start = self.printed = time.monotonic()

    def update(self, count: int = 1) -> None:
        """Adds `count` done jobs."""
        self.bar.update(count)
        self.done += count
        now = time.monotonic()
        if self.prints_lines and now - self.printed >= INTERVAL:
            self.printed = now
            elapsed = now - self.start
            left = elapsed / self.done * (self.total - self.done)
            times = f"{tqdm.format_interval(elapsed)}, left {tqdm.format_interval(left)}"
            print_line(f"{self.name}: {self.done} of {self.total} {self.unit}, {times}")

    def close(self) -> None:
        """Removes the bar, or leaves it as it is."""
        self.bar.close()


def track(
    jobs: Iterable,
    name: str,
    total: Optional[int] = None,
    unit: str = "videos",
    leave: bool = True,
    hidden: bool = False,
) -> Iterator[Any]:
    """Yields `jobs`, each of which counts as done when the next is asked for."""
    if total is None:
        assert isinstance(jobs, Sized)
        total = len(jobs)
    progress = Progress(total, name=name, unit=unit, leave=leave, hidden=hidden)
    try:
        for job in jobs:
            yield job
            progress.update()
    finally:
        progress.close()
