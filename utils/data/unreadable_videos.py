"""Videos that could not be read: counted over all workers of a rank, each logged once."""

import logging
import multiprocessing
from collections.abc import Sequence

log = logging.getLogger("zoo")


class UnreadableVideos:
    """One flag (a byte) per record, in memory shared by worker processes and threads."""

    def __init__(self, paths: Sequence[str]):
        self.paths = paths
        self.flags = multiprocessing.Array("b", len(paths))

    def add(self, index: int, reason: str) -> None:
        """Marks a video; logs the decoder's reason when it is marked for the first time."""
        with self.flags.get_lock():
            was_marked, self.flags[index] = self.flags[index], 1
        if not was_marked:
            log.warning("unreadable video: %s", reason)

    def is_unreadable(self, index: int) -> bool:
        return bool(self.flags[index])

    @property
    def count(self) -> int:
        return sum(self.flags[:])

    def describe_excess(self, limit: float) -> str:
        """An error message if more than the fraction `limit` is unreadable, else an empty string.

        It names the setting, the counts and the first unreadable video.
        """
        count = self.count
        if count <= limit * len(self.paths):
            return ""
        example = self.paths[list(self.flags[:]).index(1)]
        return (
            f"data.bad_limit: {count} of {len(self.paths)} videos could not be read, more than "
            f"{limit:.2%} (the first: {example}); leave them out by scripts/data/check_videos.py, "
            "or raise the limit"
        )
