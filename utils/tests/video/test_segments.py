"""Segments of videos: which frames they have, and that only their part of a file is read."""

import av
import numpy as np
import pytest

from utils.tests.video.videos import (
    BACK_ENDS,
    FILES,
    H264,
    ODD_VIDEOS,
    copy_packets,
    delay_packets,
    draw,
    encode,
    pictures,
    read_bits,
    write_variable_rate,
)
from utils.video import pyav_reader
from utils.video.decoders import open_video
from utils.video.frame_folder import FrameFolder
from utils.video.reader import EmptySegmentError, Segment, VideoError

RATE = 25


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return {name: draw(folder / name, *settings) for name, settings in FILES.items()}


def read_segment(path, start, end, reader="pyav"):
    """The frames of a segment, read at once and in order, which must be equal."""
    with open_video(path, reader, segment=Segment(start, end)) as video:
        frames = video.frames(range(len(video)))
        np.testing.assert_array_equal(np.stack(list(video.in_order())), frames)
    return frames


@pytest.mark.parametrize("reader", BACK_ENDS)
@pytest.mark.parametrize("name", FILES)
def test_frames_have_times_from_start_to_before_end(files, name, reader):
    for start, end, numbers in [(0, 0.4, range(10)), (1.0, 1.6, range(25, 40)), (0.6, 0.64, [15])]:
        assert read_bits(read_segment(files[name], start, end, reader)) == [*numbers]
    # Times are compared to the millisecond.
    assert read_bits(read_segment(files[name], 0.1204, 0.2396, reader)) == [3, 4, 5]


@pytest.mark.parametrize("name", ODD_VIDEOS)
def test_frames_are_those_whose_time_stamps_a_full_decode_gives(name, tmp_path):
    path = ODD_VIDEOS[name](tmp_path)
    if path.suffix == ".avi":
        pytest.skip("the time stamps of AVI are no presentation times")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stamps = [frame.pts - stream.start_time for frame in container.decode(stream)]
        times = np.array([float(stamp * stream.time_base) for stamp in stamps])
    with open_video(path, "pyav") as video:
        whole = video.frames(range(len(video)))
    generator = np.random.RandomState(0)
    for _ in range(8):
        start, end = np.sort(generator.uniform(0, times[-1] + 0.04, 2))
        expected = (times >= start - 0.0005) & (times < end - 0.0005)
        if expected.any():
            np.testing.assert_array_equal(read_segment(path, start, end), whole[expected])
        else:
            with pytest.raises(EmptySegmentError):
                read_segment(path, start, end)


def test_a_hidden_start_of_a_video_does_not_count(files, tmp_path):
    """An edit list hides seven frames, or delays the first one."""
    for shift, first in ((-7, 7 + 25), (30, 25)):
        delay = delay_packets(shift / RATE)
        path = copy_packets(files["gop12.mp4"], tmp_path / "edited.mp4", delay)
        assert read_bits(read_segment(path, 1.0, 1.2)) == [*range(first, first + 5)]


@pytest.fixture(scope="module")
def long_videos(tmp_path_factory):
    """400 frames with a key frame every 20, without B-frames: {suffix: path}."""
    folder = tmp_path_factory.mktemp("long")
    frames = pictures(40) * 10
    options = {**H264, "preset": "ultrafast"}
    result = {}
    for suffix in ("mp4", "mkv"):
        result[suffix] = encode(
            folder / f"long.{suffix}", frames=frames, options=options, gop_size=20
        )
    return result


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_segment_costs_as_much_at_the_end_as_at_the_start(long_videos, suffix, monkeypatch):
    """By the packets that are read and decoded: 2 of 16 seconds."""
    decoded = []
    decode_part = pyav_reader.decode_part

    def count(context, packets, start, needed):
        decoded.append(needed[-1] + 1 - start)
        return decode_part(context, packets=packets, start=start, needed=needed)

    monkeypatch.setattr(pyav_reader, "decode_part", count)
    for start in (0.0, 8.0, 13.6):
        with open_video(long_videos[suffix], "pyav", segment=Segment(start, start + 2)) as video:
            assert len(video) == 50
            assert len(video._packets) <= 52
            video.frames([0, 49])
    assert len({tuple(decoded[k : k + 2]) for k in (0, 2, 4)}) == 1


def test_damage_outside_of_a_segment_does_not_matter(long_videos, tmp_path):
    data = bytearray(long_videos["mkv"].read_bytes())
    half = len(data) // 2
    data[half // 2 : half] = bytes(half - half // 2)
    path = tmp_path / "damaged.mkv"
    path.write_bytes(data)
    expected = read_segment(long_videos["mkv"], 14, 15)
    np.testing.assert_array_equal(read_segment(path, 14, 15), expected)


@pytest.mark.parametrize("reader", BACK_ENDS)
@pytest.mark.parametrize("name", ["gop12.mp4", "h264.avi"])
def test_a_segment_after_the_end_is_unreadable_and_one_across_it_is_shortened(files, name, reader):
    for start in (2.4, 700):
        with pytest.raises(
            EmptySegmentError, match=rf"{name} .* from {start} to 710 .* video ends at 2\.400"
        ):
            open_video(files[name], reader, segment=Segment(start, 710))
    with pytest.raises(EmptySegmentError, match="from 1.01 to 1.02 .* is shorter than a frame"):
        open_video(files[name], reader, segment=Segment(1.01, 1.02))
    for end, shortened in ((2.4, False), (2.43, False), (3, True)):  # lists have rounded times
        with open_video(files[name], reader, segment=Segment(2, end)) as video:
            assert (len(video), video.shortened) == (10, shortened)


def test_both_readers_use_the_times_of_a_video_with_a_variable_rate(tmp_path):
    path = write_variable_rate(tmp_path)
    frames = read_segment(path, 1, 2)
    assert 0 < len(frames) < 40
    np.testing.assert_array_equal(read_segment(path, 1, 2, "decord"), frames)


def test_a_segment_of_a_folder_looks_at_its_own_files_only(tmp_path):
    for number in range(1, 31):
        if number != 3:
            (tmp_path / f"{number:05d}.png").write_bytes(b"")
    folder = FrameFolder(tmp_path, num_frames=0, image_tmpl="{:05d}.png", fps=10.0)
    segment = folder.cut(Segment(1, 2))
    assert (list(segment._numbers), segment.shortened) == ([*range(10, 20)], False)
    assert folder.cut(Segment(2.5, 9)).shortened
    with pytest.raises(EmptySegmentError, match="the video ends at 3.000"):
        folder.cut(Segment(3, 4))
    with pytest.raises(VideoError, match="no frame rate"):
        FrameFolder(tmp_path, num_frames=30, image_tmpl="{:05d}.png").cut(Segment(1, 2))
