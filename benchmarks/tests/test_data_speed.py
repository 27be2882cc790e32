"""benchmarks/data_speed.py: the processor time of decoding, without unreadable videos."""

from functools import partial
from types import SimpleNamespace

import pytest

from benchmarks import data_speed
from benchmarks.data_speed import find_reader, measure_decoding
from utils.tests.video.videos import pictures, write
from utils.video.decoders import open_video
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


def test_a_list_without_readable_videos_is_a_user_error():
    with pytest.raises(ValueError, match="data.root: no video can be read"):
        measure_decoding(partial(decode, range(12)), 12, 20)


def test_the_reader_is_that_of_the_first_readable_video(tmp_path):
    (tmp_path / "cut.mp4").touch()
    write(tmp_path / "whole.mp4", pictures(3))
    records = [tmp_path / "cut.mp4", tmp_path / "whole.mp4"]
    clips = SimpleNamespace(records=records, open_video=lambda path: open_video(path, "auto"))
    assert find_reader(clips) == "pyav"
