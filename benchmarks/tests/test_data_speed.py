"""benchmarks/data_speed.py: the processor time of decoding, without unreadable videos."""

import time
from functools import partial

import pytest

from benchmarks.data_speed import measure_decoding
from utils.video.reader import VideoError


def decode(unreadable: range, index: int) -> None:
    """Takes 4 ms; clips of `unreadable` cannot be read."""
    if index in unreadable:
        raise VideoError("a.mp4", "none", "cut short")
    start_time = time.process_time()
    while time.process_time() - start_time < 0.004:
        pass


def test_an_unreadable_video_does_not_count():
    assert measure_decoding(partial(decode, range(3)), 12, 20) == pytest.approx(0.004, rel=0.2)


def test_a_list_without_readable_videos_is_a_user_error():
    with pytest.raises(ValueError, match="data.root: no video can be read"):
        measure_decoding(partial(decode, range(12)), 12, 20)
