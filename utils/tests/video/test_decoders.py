"""Video files: frame numbers, pixels, and errors for bad files."""

import os
from pathlib import Path

import av
import numpy as np
import pytest

from utils.tests.video.video_files import BACK_ENDS, FILES, copy_packets, draw, picture, read_bits
from utils.video import decoders
from utils.video.decoders import open_video
from utils.video.libraries import load_library
from utils.video.reader import VideoError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return {name: draw(folder / name, *settings) for name, settings in FILES.items()}


def find_real_videos():
    """Videos in the folder shared/data beside the checkout, if it exists."""
    for parent in Path(__file__).resolve().parents:
        result = sorted((parent / "shared" / "data").glob("*.mp4"))
        if result:
            return result
    return []


def read_all(path, reader):
    """All frames, or the VideoError."""
    try:
        with open_video(path, reader) as source:
            return source.frames(range(len(source)))
    except VideoError as error:
        return error


def read_alike(path):
    """All frames, which are equal for all readers."""
    frames, *others = (read_all(path, reader) for reader in BACK_ENDS)
    assert all(np.array_equal(frames, other) for other in others)
    return frames


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


@pytest.mark.parametrize("name", FILES)
def test_all_readers_return_equal_frames(files, name):
    assert len(read_alike(files[name])) == FILES[name][1]


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


def write_rotation(path, matrix):
    """Writes a rotation into an MP4's track header."""
    data = bytearray(path.read_bytes())
    position = data.index(b"tkhd") + 44
    data[position : position + 20] = b"".join(
        (value << 16).to_bytes(4, "big", signed=True) for value in matrix
    )
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("matrix", "turns"), [((0, 1, 0, -1, 0), 3), ((-1, 0, 0, 0, -1), 2), ((0, -1, 0, 1, 0), 1)]
)
def test_rotated_videos_are_read_upright(tmp_path, matrix, turns):
    path = draw(tmp_path / "video.mp4", count=3)
    upright = np.rot90(read_all(path, "pyav"), turns, axes=(1, 2))
    write_rotation(path, matrix)
    for reader in BACK_ENDS:
        assert np.array_equal(read_all(path, reader), upright)


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

    def hide_five(k, packet):
        packet.pts -= 5 * packet.duration
        packet.dts -= 5 * packet.duration
        return True

    path = draw(tmp_path / "video.mp4", count=40)
    with open_video(copy_packets(path, tmp_path / "cut.mp4", hide_five), reader) as source:
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
