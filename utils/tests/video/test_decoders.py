"""Both readers: frames in any order, segments, bad requests, files and memory.

test_file_kinds.py compares their frames with those of FFmpeg for files of every kind.
"""

import gc
import hashlib
import os

import av
import numpy as np
import pytest

from utils.tests.video.videos import (
    BACK_ENDS,
    H264,
    copy_packets,
    draw,
    encode,
    pictures,
    read_bits,
    write,
)
from utils.video import pyav_reader
from utils.video.decoders import open_video
from utils.video.images import FrameFolder
from utils.video.reader import Segment, VideoError

RATE = 25
COUNT = 60
FILES = {  # name: codec, options
    "h264.mp4": ("libx264", H264),
    "h264.avi": ("libx264", H264),
    "mpeg4.avi": ("mpeg4", {}),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return {
        name: draw(folder / name, codec, count=COUNT, options=options)
        for name, (codec, options) in FILES.items()
    }


@pytest.fixture(scope="module")
def path(files):
    return files["h264.mp4"]


@pytest.mark.parametrize("reader", BACK_ENDS)
@pytest.mark.parametrize("name", FILES)
def test_frames_of_segments_show_their_numbers(files, name, reader):
    """Times are compared to the millisecond."""
    for start, end, first, last in ((0, 0.4, 0, 9), (1.0, 1.6, 25, 39), (0.1204, 0.2396, 3, 5)):
        frames = read_segment(files[name], start, end, reader)
        assert read_bits(frames) == list(range(first, last + 1))


def read_segment(path, start, end, reader="pyav"):
    """The frames of a segment, read at once and in order, which must be equal."""
    with open_video(path, reader, segment=Segment(start, end)) as video:
        frames = video.frames(range(len(video)))
        np.testing.assert_array_equal(np.stack(list(video.in_order())), frames)
    return frames


def test_the_portable_reader_gives_the_same_pixels_on_every_processor(tmp_path):
    """The checksum is that of x86-64 and of aarch64. Decoded planes are the same on both."""
    planes = np.random.RandomState(0).randint(256, size=(180, 160), dtype=np.uint8)
    frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
    pixels = pyav_reader.FrameConverter(portable=True).to_pixels(frame)
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == "e19dfc34915a892d"
    path = write(tmp_path / "a.mp4", [pixels] * 30)
    usual, portable = read_segment(path, 0, 1), read_segment(path, 0, 1, "portable")
    with open_video(path, "portable") as video:
        np.testing.assert_array_equal(video.frames(range(25)), portable)
    assert 0 < np.abs(portable.astype(int) - usual).mean() < 20


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts handles through /proc")
@pytest.mark.parametrize("reader", BACK_ENDS)
def test_closing_a_video_closes_its_file(path, reader):
    def count_handles():
        targets = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(target) == str(path) for target in targets)

    with open_video(path, reader) as video:
        video.frames([30])
        video.frames([2])
        assert count_handles() == 1
    assert count_handles() == 0


def test_decoded_frames_do_not_stay_in_memory(path):
    """Without the garbage collector, which large frames would not wake."""
    with open_video(path) as video:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                video.frames(range(4))
            frames = [o for o in gc.get_objects() if type(o) is av.VideoFrame]
        finally:
            gc.enable()
    assert len(frames) <= 2


@pytest.fixture(scope="module")
def long_videos(tmp_path_factory):
    """400 frames with a key frame every 20, without B-frames: {suffix: path}."""
    path = tmp_path_factory.mktemp("long") / "long.mp4"
    encode(path, frames=pictures(40) * 10, options={**H264, "preset": "ultrafast"}, gop_size=20)
    return {"mp4": path, "mkv": copy_packets(path, path.with_suffix(".mkv"))}


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_segment_costs_as_much_at_the_end_as_at_the_start(long_videos, suffix, monkeypatch):
    """By the packets that are read and decoded: 2 of 16 seconds."""
    decoded = []
    decode_part = pyav_reader.ExactVideo._decode_part

    def count(video, start, needed):
        decoded.append(needed[-1] + 1 - start)
        return decode_part(video, start, needed)

    monkeypatch.setattr(pyav_reader.ExactVideo, "_decode_part", count)
    for start in (0.0, 8.0, 13.6):
        with open_video(long_videos[suffix], "pyav", segment=Segment(start, start + 2)) as video:
            assert len(video) == 50
            assert len(video._packets) <= 52
            video.frames([0, 49])
    assert len({tuple(decoded[k : k + 2]) for k in (0, 2, 4)}) == 1


@pytest.mark.parametrize("reader", BACK_ENDS)
@pytest.mark.parametrize("name", ["h264.mp4", "h264.avi"])
def test_a_segment_after_the_end_is_unreadable_and_one_across_it_is_shortened(files, name, reader):
    for start, end in ((2.4, 710), (1.01, 1.02)):
        with pytest.raises(VideoError, match=f"{name}.*from {start} to {end}"):
            open_video(files[name], reader, segment=Segment(start, end))
    for end in (2.4, 2.43, 3):
        with open_video(files[name], reader, segment=Segment(2, end)) as video:
            assert len(video) == 10


def test_a_damaged_key_frame_is_counted_and_concealed_as_in_order(tmp_path):
    """By the frames before it, which a decoder that has started there does not have."""

    def damage(number, data):
        return data[:-200] + bytes(200) if number == 24 else data

    whole = draw(tmp_path / "a.mp4", count=40, b_frames=0)
    path = copy_packets(whole, tmp_path / "b.mp4", edit=damage)
    with open_video(path) as video:
        expected = list(video.in_order())[26:30]
    for segment, first in ((None, 26), (Segment(24 / RATE, 35 / RATE), 2)):
        with open_video(path, segment=segment) as video:
            np.testing.assert_array_equal(video.frames(range(first, first + 4)), expected)
            assert video.damaged


def test_a_segment_of_a_folder_looks_at_its_own_files_only(tmp_path):
    for number in range(1, 31):
        if number != 3:
            (tmp_path / f"{number:05d}.png").write_bytes(b"")
    folder = FrameFolder(tmp_path, num_frames=0, image_tmpl="{:05d}.png", fps=10.0)
    segment = folder.cut(Segment(1, 2))
    assert list(segment._numbers) == [*range(10, 20)]
    with pytest.raises(VideoError, match="from 3 to 4"):
        folder.cut(Segment(3, 4))
    with pytest.raises(VideoError, match="no frame rate"):
        FrameFolder(tmp_path, num_frames=30, image_tmpl="{:05d}.png").cut(Segment(1, 2))
