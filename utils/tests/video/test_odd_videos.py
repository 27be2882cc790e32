"""Unusual videos: every reader returns the same frames as decoding the whole file in order."""

import av
import numpy as np
import psutil
import pytest
from av.video.reformatter import VideoReformatter

from utils.tests.video.odd_videos import ODD_VIDEOS, write_cut_open_group
from utils.tests.video.video_files import BACK_ENDS
from utils.video.decoders import open_video
from utils.video.pyav_reader import to_array
from utils.video.reader import VideoError

# The FFmpeg versions of both libraries give different colours for these.
COLOURS = {"interlaced", "ten bits"}


@pytest.fixture(scope="module")
def odd_videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    return {name: make(folder) for name, make in ODD_VIDEOS.items()}


def decode_in_order(path):
    """All frames, by FFmpeg."""
    with av.open(str(path)) as container:
        to_rgb = VideoReformatter()
        return np.stack([to_array(to_rgb, frame) for frame in container.decode(video=0)])


@pytest.mark.parametrize("reader", BACK_ENDS)
@pytest.mark.parametrize("name", ODD_VIDEOS)
def test_frames_equal_those_of_a_full_decode(odd_videos, name, reader):
    if name == "ten hours" and av.library_versions["libavformat"] < (62,):
        pytest.skip("FFmpeg 7 misreads such a file itself")
    expected = decode_in_order(odd_videos[name])
    rng = np.random.RandomState(1)
    with open_video(odd_videos[name], reader) as video:
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
    expected = decode_in_order(path)
    with open_video(path, reader) as video:
        np.testing.assert_array_equal(video.frames(range(20)), expected[:20])
        if len(video) > len(expected):
            with pytest.raises(VideoError):
                video.frames([len(video) - 1])


def test_pyav_decodes_only_the_necessary_frames(odd_videos):
    """It starts at the previous random-access point and ends at the last requested frame."""
    with open_video(odd_videos["no B-frames"], "pyav") as video:
        assert video._starts == [0, 8, 16, 24, 32]
        assert video._parts([9, 30, 31]) == [(8, [9]), (24, [30, 31])]
    with open_video(odd_videos["intra refresh"], "pyav") as video:
        assert video._starts == [0], "a recovery point is not a random-access point"


@pytest.mark.slow
@pytest.mark.parametrize("reader", BACK_ENDS)
def test_ten_thousand_clips_do_not_increase_memory(odd_videos, reader):
    def resident():
        return psutil.Process().memory_info().rss

    for count in range(10_000):
        with open_video(odd_videos["no B-frames"], reader) as video:
            video.frames([1, 9, 30])
        if count == 1000:
            before = resident()
    assert resident() < 1.05 * before
