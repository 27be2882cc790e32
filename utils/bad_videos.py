"""Videos or images that could not be read: counted over all workers of a rank, each named once."""

import logging
import multiprocessing
from collections.abc import Sequence

import numpy as np

log = logging.getLogger("zoo")
REMEDIES = {"video": "leave them out by scripts/scan_videos.py", "image": "remove them"}


class BadVideos:
    """One byte per file of a list, in memory shared by worker processes and threads."""

    def __init__(self, names: Sequence[str], kind: str = "video"):
        """Of `names` only the length and the name of the first bad one are asked for."""
        self.names, self.kind = names, kind
        self.flags = multiprocessing.Array("b", len(names))

    def add(self, index: int, reason: str) -> None:
        """Marks a file; the first to mark it names it in the log with the decoder's reason."""
        with self.flags.get_lock():
            known, self.flags[index] = self.flags[index], 1
        if not known:
            log.warning("unreadable %s: %s", self.kind, reason)

    def is_bad(self, index: int) -> bool:
        return bool(self.flags[index])

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.marks()))

    def marks(self) -> np.ndarray:
        """The flags without a copy: every training step counts them, ImageNet's are a million."""
        return np.frombuffer(self.flags.get_obj(), np.bool_)

    def over(self, limit: float) -> str:
        """A line that says so where more than the share `limit` is unreadable, else empty."""
        count = self.count
        if count <= limit * len(self.names):
            return ""
        first = self.names[int(np.argmax(self.marks()))]
        return (
            f"data.bad_limit: {count} of {len(self.names)} {self.kind}s could not be read, more "
            f"than {limit:.2%} (the first: {first}); {REMEDIES[self.kind]}, or raise the limit"
        )
