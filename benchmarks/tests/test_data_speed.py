"""benchmarks/data_speed.py: the processor time of decoding, without unreadable videos."""

from functools import partial
from types import SimpleNamespace

from benchmarks import data_speed
from benchmarks.data_speed import measure_decoding
from utils.video.reader import VideoError

CLOCK = [0.0]  # seconds


def decode(unreadable: range, index: int) -> None:
    """Takes 4 s of the fake clock; clips of `unreadable` cannot be read, after 1 s."""
    CLOCK[0] += 1
    if index in unreadable:
        raise VideoError("a.mp4", "none", "cut short")
    CLOCK[0] += 3


def test_an_unreadable_video_does_not_count(monkeypatch):
    clock = SimpleNamespace(process_time=lambda: CLOCK[0], monotonic=lambda: 0.0)
    monkeypatch.setattr(data_speed, "time", clock)
    assert measure_decoding(partial(decode, range(3)), 12, 20) == 4
