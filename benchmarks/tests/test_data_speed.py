"""benchmarks/data_speed.py: the processor time of decoding, without unreadable videos."""

import time

import pytest

from benchmarks.data_speed import measure_decoding
from utils.video.reader import VideoError


class Clips:
    """Twelve clips that take 4 ms to decode; those of `unreadable` cannot be read."""

    def __init__(self, unreadable: range):
        self.unreadable = unreadable

    def __len__(self) -> int:
        return 12

    def decode(self, index: int) -> None:
        if index in self.unreadable:
            raise VideoError("a.mp4", "none", "cut short")
        start_time = time.process_time()
        while time.process_time() - start_time < 0.004:
            pass


def test_an_unreadable_video_does_not_count():
    assert measure_decoding(Clips(range(3)), 20) == pytest.approx(0.004, rel=0.2)


def test_a_list_without_readable_videos_is_a_user_error():
    with pytest.raises(ValueError, match="data.root: no video can be read"):
        measure_decoding(Clips(range(12)), 20)
