"""Video files of every kind: all readers give the frames of a full decode, in any order."""

import os
from pathlib import Path

import av
import numpy as np
import psutil
import pytest

from utils.tests.video.videos import (
    BACK_ENDS,
    FILES,
    ODD_VIDEOS,
    copy_packets,
    decode_most,
    delay_packets,
    draw,
    picture,
    read_alike,
    read_all,
    read_bits,
    write_cut_open_group,
)
from utils.video import decoders
from utils.video.decoders import open_video
from utils.video.libraries import load_library
from utils.video.reader import VideoError

# The FFmpeg versions of both libraries give different colours for these.
COLOURS = {"interlaced", "ten bits"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    result = {name: draw(folder / name, *settings) for name, settings in FILES.items()}
    return {**result, **{name: make(folder) for name, make in ODD_VIDEOS.items()}}


def find_real_videos():
    """Videos in the folder shared/data beside the checkout, if it exists."""
    for parent in Path(__file__).resolve().parents:
        result = sorted((parent / "shared" / "data").glob("*.mp4"))
        if result:
            return result
    return []


@pytest.mark.parametrize("reader", BACK_ENDS)
@pytest.mark.parametrize("name", FILES)
def test_requested_frames_are_returned_in_any_order(files, name, reader):
    rng = np.random.RandomState(3)
    count = FILES[name][1]
    requests = [range(count), [count - 1], [0], [5, 5, 5], [40, 2, 40, 7], range(0, count, 7)]
    for k in range(8):
        random = rng.randint(count, size=9)
        requests.append(np.sort(random) if k % 2 else random)
    with open_video(files[name], reader) as source:
        assert len(source) == count
        for indices in requests:
            frames = source.frames(indices)
            assert frames.shape == (len(indices), 120, 160, 3)
            assert frames.dtype == np.uint8
            assert read_bits(frames) == list(indices)


@pytest.mark.parametrize("path", find_real_videos() or [None], ids=lambda path: path and path.name)
def test_all_readers_return_equal_frames_of_real_videos(path):
    if path is None:
        pytest.skip("no real videos beside the checkout")
    if isinstance(read_all(path, "pyav"), VideoError):
        assert all(isinstance(read_all(path, reader), VideoError) for reader in BACK_ENDS)
    else:
        with av.open(str(path)) as container:
            count = sum(1 for _ in container.decode(video=0))
        assert len(read_alike(path)) == count


@pytest.mark.parametrize("size", [(144, 176), (96, 64), (48, 50), (16, 16), (34, 34), (150, 102)])
def test_padded_rows_are_read_correctly(tmp_path, size):
    path = draw(tmp_path / "narrow.mp4", count=3, size=size)
    assert read_alike(path).shape == (3, size[1], size[0], 3)


@pytest.mark.parametrize("reader", BACK_ENDS)
def test_pixels_are_red_green_blue(tmp_path, reader):
    path = draw(tmp_path / "video.mp4", count=1, options={"qp": "1"})
    difference = np.abs(read_all(path, reader)[0].astype(int) - picture(0, 160, 120))
    assert np.median(difference) < 8


@pytest.mark.parametrize("reader", BACK_ENDS)
@pytest.mark.parametrize("index", [-1, 60, 10**6])
def test_an_index_out_of_range_is_a_video_error(files, reader, index):
    with open_video(files["gop12.mp4"], reader) as source:
        with pytest.raises(VideoError, match=f"frame {index} .*60"):
            source.frames([3, index])
        assert read_bits(source.frames([3])) == [3]


@pytest.mark.parametrize("reader", BACK_ENDS)
def test_indices_must_be_integers_and_not_empty(files, reader):
    with open_video(files["gop12.mp4"], reader) as source:
        with pytest.raises(ValueError, match="no frames"):
            source.frames([])
        with pytest.raises(TypeError):
            source.frames([1.5])


@pytest.mark.parametrize("reader", BACK_ENDS)
def test_frames_hidden_by_an_edit_list_are_not_counted(tmp_path, reader):
    """A cut that copies the stream hides frames. decord would count them."""

    path = draw(tmp_path / "video.mp4", count=40)
    cut = copy_packets(path, tmp_path / "cut.mp4", delay_packets(-5 / 25))
    with open_video(cut, reader) as source:
        assert len(source) == 35
        assert read_bits(source.frames([34, *range(35)])) == [39, *range(5, 40)]


def test_auto_is_pyav_which_every_reader_needs(files, monkeypatch):
    assert open_video(files["gop12.mp4"]).reader == "pyav"
    assert open_video(files["gop12.mp4"], "decord").reader == "decord"
    for missing, reader in (("pyav", "auto"), ("pyav", "decord"), ("decord", "decord")):
        monkeypatch.setattr(
            decoders,
            "load_library",
            lambda name, missing=missing: None if name == missing else load_library(name),
        )
        package = "av" if missing == "pyav" else "decord2"
        with pytest.raises(ValueError, match=f"not installed: pip install {package}"):
            open_video(files["gop12.mp4"], reader)


def test_an_unknown_reader_is_named(files):
    with pytest.raises(ValueError, match=r"data\.reader is 'ffmpeg'; .*auto, pyav, decord"):
        open_video(files["gop12.mp4"], "ffmpeg")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts handles through /proc")
@pytest.mark.parametrize("reader", BACK_ENDS)
def test_closing_a_video_closes_its_file(files, reader):
    def count_handles():
        targets = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(target) == str(files["gop12.mp4"]) for target in targets)

    with open_video(files["gop12.mp4"], reader) as source:
        source.frames([30])
        source.frames([2])
        assert count_handles() == 1
    assert count_handles() == 0
    with pytest.raises(ValueError, match="closed"):
        source.frames([2])


@pytest.mark.parametrize("reader", BACK_ENDS)
@pytest.mark.parametrize("name", [*FILES, *ODD_VIDEOS])
def test_frames_equal_those_of_a_full_decode(files, name, reader):
    if name == "ten hours" and av.library_versions["libavformat"] < (62,):
        pytest.skip("FFmpeg 7 misreads such a file itself")
    expected = decode_most(files[name])
    rng = np.random.RandomState(1)
    with open_video(files[name], reader) as video:
        assert len(video) == len(expected)
        draws = [np.sort(rng.randint(len(expected), size=count)) for count in (1, 3, 8)]
        for indices in (*draws, [len(expected) - 1, 0]):
            frames = video.frames(indices)
            if name in COLOURS and reader != "pyav":
                assert find_nearest(frames, expected) == list(indices)
            else:
                np.testing.assert_array_equal(frames, expected[indices], f"{indices}")


def find_nearest(frames, expected):
    """The index of the most similar frame of `expected` for each of `frames`."""
    far = np.abs(frames[:, None].astype(int) - expected[None]).mean(axis=(2, 3, 4))
    assert far.min(axis=1).max() < 2
    return far.argmin(axis=1).tolist()


@pytest.mark.parametrize("reader", BACK_ENDS)
def test_a_video_that_starts_within_an_open_group_has_no_wrong_frames(tmp_path, reader):
    """All readers leave out the first frames, which cannot be decoded, or count and refuse them."""
    path = write_cut_open_group(tmp_path)
    expected = decode_most(path)
    with open_video(path, reader) as video:
        np.testing.assert_array_equal(video.frames(range(20)), expected[:20])
        if len(video) > len(expected):
            with pytest.raises(VideoError):
                video.frames([len(video) - 1])


def test_pyav_decodes_only_the_necessary_frames(files):
    """It starts at the previous random-access point and ends at the last requested frame."""
    with open_video(files["no B-frames"], "pyav") as video:
        assert video._starts == [0, 8, 16, 24, 32]
        assert video._parts([9, 30, 31]) == [(8, [9]), (24, [30, 31])]
    with open_video(files["intra refresh"], "pyav") as video:
        assert video._starts == [0], "a recovery point is not a random-access point"


@pytest.mark.slow
@pytest.mark.parametrize("reader", BACK_ENDS)
def test_ten_thousand_clips_do_not_increase_memory(files, reader):
    def resident():
        return psutil.Process().memory_info().rss

    for count in range(10_000):
        with open_video(files["no B-frames"], reader) as video:
            video.frames([1, 9, 30])
        if count == 1000:
            before = resident()
    assert resident() < 1.05 * before
