"""Files that could not be read, and damaged frames: counted over all workers of a rank."""

import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np

from utils.log import log
from utils.video.reader import FrameReader

DAMAGED_FRAMES = (
    "%d damaged frames read so far, the newest in %s: the decoder guesses their pixels; "
    "scripts/data/check_videos.py finds such videos"
)
SHORTENED_SEGMENTS = (
    "%d segments read so far end after their video, the newest in %s: only their existing frames "
    "are used"
)
REMEDIES = {"video": "leave them out by scripts/data/check_videos.py", "image": "remove them"}


class UnreadableFiles:
    """One flag (a byte) per record, in memory shared by worker processes and threads.

    A record has the attribute `path`; `kind` is video or image.
    """

    def __init__(self, records: Sequence[Any], kind: str = "video"):
        self.records = records
        self.kind = kind
        self.flags = multiprocessing.Array("b", len(records))

    def add(self, index: int, reason: str) -> None:
        """Marks a file; logs the decoder's reason when it is marked for the first time."""
        with self.flags.get_lock():
            was_marked = self.flags[index]
            self.flags[index] = 1
        if not was_marked:
            log.warning("unreadable %s: %s", self.kind, reason)

    def list_marked(self) -> np.ndarray:
        """The indices of the marked files, int32, ascending."""
        return np.flatnonzero(self.view_flags()).astype(np.int32)

    def mark_again(self, indices: np.ndarray) -> None:
        """Marks the files that were marked before a run was stopped."""
        self.view_flags()[indices[indices < len(self.records)]] = True

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.view_flags()))

    def view_flags(self) -> np.ndarray:
        """The flags without a copy: every training step counts them, a million for ImageNet."""
        return np.frombuffer(memoryview(self.flags.get_obj()), np.bool_)

    def describe_excess(self, limit: float) -> str:
        """An error message if more than the fraction `limit` is unreadable, else ""."""
        count = self.count
        if count <= limit * len(self.records):
            return ""
        example = self.records[int(np.argmax(self.view_flags()))].path
        return (
            f"data.max_unreadable: {count} of {len(self.records)} {self.kind}s could not be read, "
            f"more than {limit:.2%} (the first: {example}); {REMEDIES[self.kind]}, or raise "
            "the limit"
        )


class EventCount:
    """A number over all workers of a rank, logged when it is no longer 0 and when it has doubled.

    `message` has a %d for the number and a %s for the path of the newest video.
    """

    def __init__(self, message: str):
        self.message = message
        # So far; in the newest line of the log
        self.counts: Any = multiprocessing.Array("q", 2)

    def add(self, number: int, path: object) -> None:
        if not number:
            return
        with self.counts.get_lock():
            self.counts[0] += number
            total, logged = self.counts
            if total < 2 * logged:
                return
            self.counts[1] = total
        log.warning(self.message, total, path)


class VideoWarnings:
    """Damaged frames, and segments that end after their video, of all videos that are read."""

    def __init__(self):
        self.damaged = EventCount(DAMAGED_FRAMES)
        self.shortened = EventCount(SHORTENED_SEGMENTS)

    def add(self, source: FrameReader) -> None:
        """Counts those of a video that has been read. `FrameReader.damaged` says who marks them."""
        self.damaged.add(source.damaged, source.path)
        self.shortened.add(source.shortened, source.path)
