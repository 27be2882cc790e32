"""Bad videos: each is refused by name, or read, in a short time and with little memory.

Damaged, hostile and unusual files, for every reader and the scan. Random damage is in tests/fuzz.
"""

import io
import os
import struct
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from scripts.data.prepare.integrity import VideoJob, examine
from tests.numbered_videos import write_numbered_video
from utils.tests.video.videos import BACK_ENDS, copy_packets, draw, encode, pictures, write
from utils.video import pyav_reader
from utils.video.decoders import open_video
from utils.video.reader import MAX_PIXELS, VideoError

FRAMES = 40
PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:9,\nnone.ts\n"
LATIN = b"caf\xe9\xe8\xfc\xdf\xff"  # no UTF-8


def write_without_packets(target: Path) -> None:
    """Writes a container whose video stream is empty."""
    with av.open(str(target), "w") as new:
        stream = new.add_stream("mjpeg", rate=25)
        stream.width = 64
        stream.height = 64
        stream.pix_fmt = "yuvj420p"
        new.start_encoding()


def write_song(target: Path) -> None:
    with av.open(str(target), "w") as new:
        stream = new.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            new.mux(packet)


def write_files_of_every_kind(folder: Path) -> dict[str, str]:
    """Writes files of every kind of a scan, good ones too; returns {file: kind}."""
    good = folder / "good.mp4"
    write_numbered_video(good, frames=FRAMES, width=64, height=64, rate=25)
    data = good.read_bytes()
    front = copy_packets(good, folder / "front.mp4", movflags="faststart").read_bytes()
    mkv = copy_packets(good, folder / "whole.mkv").read_bytes()
    avi = draw(folder / "whole.avi", "mpeg4", count=FRAMES, options={}).read_bytes()
    write(folder / "whole.ts", pictures=pictures(FRAMES), bf="2", g="12")
    write_song(folder / "song.mp4")
    with wave.open(str(folder / "sound.mp4"), "wb") as song:
        song.setparams((1, 2, 8000, 8000, "NONE", ""))
        song.writeframes(bytes(16000))
    write_without_packets(folder / "nothing.avi")
    picture = io.BytesIO()
    Image.new("RGB", (64, 64)).save(picture, "PNG")
    noise = np.random.RandomState(0).bytes(20_000)
    middle = front.index(b"mdat") + 408
    files = {  # kind: {name: content}; None is written already
        "good": {
            **dict.fromkeys(["good.mp4", "front.mp4", "whole.mkv", "whole.avi", "whole.ts"]),
            **dict.fromkeys([os.fsdecode(b"caf\xe9.mp4"), "with space.mp4"], data),
        },
        "empty": {"empty.mp4": b""},
        "truncated": {
            "cut.mp4": data[: len(data) // 2],
            "cut_front.mp4": front[: len(front) * 2 // 3],
            "cut.mkv": mkv[: len(mkv) // 2],
            "cut.avi": avi[: len(avi) // 2],
        },
        "broken": {
            "noise.mp4": noise,
            "spoilt.mp4": front[:middle] + noise[: len(front) - middle],
            "text.mp4": b"no video\n",
            "picture.mp4": picture.getvalue(),
            "codec.mp4": data.replace(b"avc1", b"zzz1"),
        },
        "audio only": {"song.mp4": None, "sound.mp4": None},
        "no frames": {"nothing.avi": None},
        "wrong extension": {
            "notes.txt": b"not a video\n" * 99,
            "video.txt": data,
        },
    }
    for contents in files.values():
        for name, content in contents.items():
            if content is not None:
                (folder / name).write_bytes(content)
    kinds = {name: kind for kind, contents in files.items() for name in contents}
    return {**kinds, "nowhere.mp4": "missing"}


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("bad")
    return folder, write_files_of_every_kind(folder)


@pytest.mark.parametrize("reader", ["auto", "decord"])
def test_every_kind_is_recognised_and_refused_by_its_name_in_one_line(bad_files, reader):
    folder, kinds = bad_files
    # The beginning of cut files is read; FFmpeg draws text as a video if its name ends in .txt.
    readable = {"spoilt.mp4", "video.txt", "notes.txt", "cut_front.mp4", "cut.mkv", "cut.avi"}
    for name, kind in kinds.items():
        path = str(folder / name)
        assert examine(VideoJob(path, reader)).kind == kind, name
        ends = examine(VideoJob(path, reader, depth="ends"))
        assert ends.kind == kind or name == "spoilt.mp4", "damaged in the middle"
        if kind == "good":
            assert ends.frames == FRAMES
        elif name not in readable:
            with pytest.raises(VideoError) as caught:
                open_video(path, reader)
            assert path in str(caught.value)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("width", "height", "words"),
    [
        (5120, 3840, "5120x3840.* data.max_pixels=16777216 "),
        (4096, 8, "4096x8 .*max_pixels"),  # as test views enlarge a narrow video
        (4096, 16, ""),
        (1, 1, ""),
    ],
)
@pytest.mark.parametrize("reader", BACK_ENDS)
def test_frames_above_the_limit_are_refused_before_they_are_decoded(
    tmp_path, reader, width, height, words
):
    pixels = np.zeros((height, width, 3), np.uint8)
    if height > 16:
        path = encode(tmp_path / "large.mp4", [pixels], options={"preset": "ultrafast"})
    else:
        path = encode(tmp_path / "strip.avi", [pixels], codec="ffv1", pix_fmt="bgr0")
    limit = MAX_PIXELS
    if words:
        with pytest.raises(VideoError, match=words):
            open_video(path, reader)
        for depth in ("all", "ends"):
            finding = examine(VideoJob(str(path), reader, depth))
            assert (finding.kind, "data.max_pixels" in finding.reason) == ("broken", True)
        limit = 2**28
    with open_video(path, reader, limit) as source:
        assert source.frames([0]).shape == (1, height, width, 3)


def test_a_video_whose_frames_become_larger_is_refused(tmp_path):
    """The container gives only the size of its first frames."""
    small, large = (
        draw(tmp_path / f"{side}.ts", count=4, gop=2, size=(side, side)) for side in (256, 512)
    )
    path = tmp_path / "both.ts"
    path.write_bytes(small.read_bytes() + large.read_bytes())
    with open_video(path) as source:
        assert {frame.shape for frame in source.in_order()} == {(256, 256, 3)}
    with pytest.raises(VideoError, match="512x512 .*data.max_pixels"):
        open_video(path, max_pixels=256 * 256)


def replace_box(data: bytes, kind: bytes, content: bytes) -> bytes:
    """An MP4 with other content in the only box of a kind, and the sizes of its parents."""
    start = data.index(kind) - 4
    (size,) = struct.unpack_from(">I", data, start)
    box = struct.pack(">I4s", 8 + len(content), kind) + content
    changed = bytearray(data[:start] + box + data[start + size :])
    for parent in (b"moov", b"trak", b"edts", b"mdia", b"minf", b"stbl", b"moof", b"traf"):
        outer = data.find(parent) - 4
        (length,) = struct.unpack_from(">I", data, max(outer, 0))
        if 0 <= outer < start < outer + length:
            struct.pack_into(">I", changed, outer, length + len(changed) - len(data))
    return bytes(changed)


def repeat_edit(data: bytes, count: int) -> bytes:
    """`count` edits, each of which shows all 25 frames."""
    edit = struct.pack(">IIHH", 1000, 0, 1, 0)
    return replace_box(data, b"elst", struct.pack(">II", 0, count) + count * edit)


def repeat_sample(data: bytes, count: int) -> bytes:
    """`count` samples of one byte in one chunk."""
    data = replace_box(data, b"stsz", struct.pack(">III", 0, 1, count))
    return replace_box(data, b"stsc", struct.pack(">IIIII", 0, 1, 1, count, 1))


def repeat_fragment_sample(data: bytes, count: int) -> bytes:
    """A fragment of `count` samples with default sizes."""
    return replace_box(data, b"trun", struct.pack(">II", 0, count))


@pytest.mark.parametrize("reader", BACK_ENDS)
@pytest.mark.parametrize(
    ("change", "count", "entries"),
    [
        (repeat_edit, 10**6, 25 * 10**6),
        (repeat_sample, 2**31 - 1, 2**31 - 1),
        (repeat_fragment_sample, 2**31 - 1, 2**31 - 1),
    ],
)
def test_an_mp4_with_millions_of_index_entries_is_refused(tmp_path, reader, change, count, entries):
    """FFmpeg would need minutes or hours, or fill the memory."""
    muxer = {"movflags": "frag_keyframe+empty_moov"} if "fragment" in change.__name__ else None
    form = {"codec": "mpeg4", "options": {"g": "100"}, "muxer": muxer}
    path = encode(tmp_path / "video.mp4", frames=pictures(25, 64), **form)
    with open_video(path, reader) as source:
        assert len(source) == 25
    path.write_bytes(change(path.read_bytes(), count))
    with pytest.raises(VideoError, match=f"video.mp4 .*: its index has {entries} entries for"):
        open_video(path, reader)
    finding = examine(VideoJob(str(path), reader))
    assert (finding.kind, "its index has" in finding.reason) == ("broken", True)


def test_packets_of_a_long_file_are_not_kept(tmp_path, monkeypatch):
    """Without stored packets, frames are decoded in order and the pixels are equal."""
    path = write(tmp_path / "video.mp4", pictures(25), bf="0")
    with open_video(path, "pyav") as source:
        expected = source.frames([3, 20])
    monkeypatch.setattr(pyav_reader, "MAX_KEPT_PACKETS", 20)
    with open_video(path, "pyav") as source:
        assert source._packets == []
        np.testing.assert_array_equal(source.frames([3, 20]), expected)


@pytest.mark.parametrize("name", ["live.mp4", "live.m3u8", "tagged.m3u8", "list.mp4", "list.txt"])
def test_playlists_are_refused_at_once(tmp_path, name):
    draw(tmp_path / "neighbour.mp4", count=4)
    tag = b"ID3\3\0\0\0\0\0\0" if name == "tagged.m3u8" else b""
    text = "ffconcat version 1.0\nfile neighbour.mp4\n" if "list" in name else PLAYLIST
    (tmp_path / name).write_bytes(tag + text.encode())
    for reader in BACK_ENDS:
        with pytest.raises(VideoError, match=name):
            open_video(tmp_path / name, reader)
        assert examine(VideoJob(str(tmp_path / name), reader)).kind in ("wrong extension", "broken")


ODD_NAMES = [
    "concat:good.mp4|good.mp4", "12:30.mp4", "-i.mp4", "a%03d.mp4",
    *map(os.fsdecode, (LATIN + b".mp4", b"n" * 251 + b".mp4", b"\x1b[31m\n.mp4")),
]  # fmt: skip


def test_a_name_is_a_file_and_never_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = draw(tmp_path / "good.mp4", count=4)
    for name in ODD_NAMES:
        os.link(path, name)
        for reader in BACK_ENDS:
            with open_video(name, reader) as source:
                assert source.frames([3]).shape[0] == 1
        assert examine(VideoJob(name)).kind == "good"


def damage_video(path):
    """Changes bytes of the pictures, so that they decode with errors."""
    data = bytearray(path.read_bytes())
    data[(data.index(b"mdat") + len(data)) // 2] ^= 0x5A
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_a_video_that_decodes_with_errors_is_damaged(tmp_path, codec):
    path = write(tmp_path / "damaged.mp4", pictures=pictures(40, 160, 128), codec=codec, g="10")
    assert examine(VideoJob(str(path))).kind == "good"
    with open_video(damage_video(path)) as source:
        assert len(source.frames(range(len(source)))) == 40
        assert 0 < source.damaged < 40
    finding = examine(VideoJob(str(path)))
    assert finding.kind == "damaged"
    assert " of 40 frames" in finding.reason


def test_a_scan_refuses_a_folder_a_pipe_and_a_device(tmp_path):
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "device.mp4").symlink_to("/dev/zero")
    for path in tmp_path.iterdir():
        assert examine(VideoJob(str(path))).kind == "missing"
        with pytest.raises(VideoError, match="no such file"):
            open_video(path)
