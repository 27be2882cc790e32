"""The progress of a long command: a bar on a terminal, else a line every minute on stderr.

A bar in a file is one line of thousands of characters, and nothing at all is as if it hung.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from tqdm import tqdm

from utils.messages import print_line

INTERVAL = 60.0  # seconds between two lines
LINE = "{desc}: {n_fmt} of {total_fmt}{unit}, {elapsed}, left {remaining}"


class Lines:
    """A file for a bar, each state of which becomes a line on stderr."""

    def write(self, text: str) -> None:
        if text.strip():
            print_line(text)

    def flush(self) -> None:
        """print_line has done it."""


class Progress(tqdm):
    """Counts the done of `total` jobs; `unit` is their plural. `hidden`: prints nothing.

    The bar disappears at the end unless `leave`. `initial` jobs were done before. Without
    `prints_lines` there is a bar or nothing. Iterating yields `jobs`, each of which counts as done
    when the next is asked for.
    """

    def __init__(
        self,
        total: Optional[int],
        name: str,
        unit: str,
        leave: bool = False,
        hidden: bool = False,
        initial: int = 0,
        prints_lines: bool = True,
        jobs: Optional[Iterable] = None,
    ) -> None:
        options: dict[str, Any] = {}
        if prints_lines and not sys.stderr.isatty():
            leave = False
            options = {"file": Lines(), "bar_format": LINE, "miniters": 1, "smoothing": 0}
            options |= {"mininterval": INTERVAL, "delay": INTERVAL}
        super().__init__(
            jobs,
            total=total,
            desc=name,
            unit=f" {unit}",
            leave=leave,
            disable=True if hidden else None,  # None: tqdm looks whether stderr is a terminal
            initial=initial,
            **options,
        )


def track(
    jobs: Iterable,
    name: str,
    total: Optional[int] = None,
    unit: str = "videos",
    leave: bool = True,
    hidden: bool = False,
) -> Iterator[Any]:
    """Yields `jobs`, which have a length without `total`, and shows the progress."""
    yield from Progress(total, name=name, unit=unit, leave=leave, hidden=hidden, jobs=jobs)
