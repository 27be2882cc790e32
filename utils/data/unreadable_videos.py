"""Videos that could not be read: counted over all workers of a rank, each named once."""

import logging
import multiprocessing
from collections.abc import Sequence

log = logging.getLogger("zoo")


class BadVideos:
    """One byte per video of a list, in memory shared by worker processes and threads."""

    def __init__(self, names: Sequence[str]):
        self.names = names
        self.flags = multiprocessing.Array("b", len(names))

    def add(self, index: int, reason: str) -> None:
        """Marks a video; the first to mark it names it in the log with the decoder's reason."""
        with self.flags.get_lock():
            known, self.flags[index] = self.flags[index], 1
        if not known:
            log.warning("unreadable video: %s", reason)

    def is_bad(self, index: int) -> bool:
        return bool(self.flags[index])

    @property
    def count(self) -> int:
        return sum(self.flags[:])

    def over(self, limit: float) -> str:
        """A line that says so where more than the share `limit` is unreadable, else empty."""
        count = self.count
        if count <= limit * len(self.names):
            return ""
        first = self.names[list(self.flags[:]).index(1)]
        return (
            f"data.bad_limit: {count} of {len(self.names)} videos could not be read, more than "
            f"{limit:.2%} (the first: {first}); leave them out by scripts/data/check_videos.py, or "
            "raise the limit"
        )
