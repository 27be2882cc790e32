"""Hostile files: each is refused by name, or read, in a short time and with little memory."""

import os
import re
import struct
import subprocess
import sys
import time
import zlib

import av
import numpy as np
import pytest
from PIL import Image

from scripts.data import integrity
from scripts.data.integrity import VideoJob, examine
from utils.config import ROOT
from utils.data.annotation_file import Record
from utils.data.unreadable import UnreadableFiles
from utils.tests.video.test_decoders import BACK_ENDS, draw, encode, picture
from utils.tests.video.test_odd_videos import pictures, write
from utils.video import pyav_reader
from utils.video.decoders import FrameFolder, VideoError, jpeg_size, open_video, read_jpeg
from utils.video.pyav_reader import ExactVideo
from utils.video.reader import WrongContent

PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:9,\nnone.ts\n"
LATIN = b"caf\xe9\xe8\xfc\xdf\xff"  # no UTF-8


def replace_bytes(path, old: bytes, new: bytes):
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    return path


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi", ".mov"])
def test_metadata_that_is_not_utf8_is_ignored(tmp_path, suffix):
    title = "cafeZZZZZ"[: len(LATIN)]
    path = encode(tmp_path / f"video{suffix}", pictures(4, 64), "mpeg4", title=title)
    replace_bytes(path, title.encode(), LATIN)
    for reader in BACK_ENDS:
        with open_video(path, reader) as source:
            assert source.frames([0, 3]).shape == (2, 64, 64, 3)
    for depth in ("all", "ends"):
        assert examine(VideoJob(str(path), depth=depth)).kind == "good"


def test_an_unknown_codec_is_a_video_error(tmp_path):
    path = replace_bytes(draw(tmp_path / "video.mp4", count=4), b"avc1", b"zzz1")
    with pytest.raises(VideoError, match="video.mp4 with pyav: this FFmpeg has no decoder"):
        open_video(path)
    for depth in ("all", "ends"):
        finding = examine(VideoJob(str(path), depth=depth))
        assert finding == ("broken", "this FFmpeg has no decoder for its codec", 0)


def test_an_avi_with_dropped_frames_is_intact(tmp_path):
    path = write(tmp_path / "video.avi", pictures(4), "mpeg4", stamps=[0, 400, 800, 1560])
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames > 4
    for depth in ("all", "ends"):
        assert examine(VideoJob(str(path), depth=depth)).kind == "good"
    with open_video(path) as source:
        assert len(source.frames(range(len(source)))) == 4


@pytest.mark.parametrize("reader", BACK_ENDS)
def test_frames_above_the_limit_are_refused_before_they_are_decoded(tmp_path, reader):
    frame = av.VideoFrame(5120, 3840, "yuv420p")
    for plane in frame.planes:
        plane.update(bytes(plane.buffer_size))
    path = encode(tmp_path / "large.mp4", [frame], options={"preset": "ultrafast"})
    with pytest.raises(VideoError, match="5120x3840 has more than 16777216 pixels.*max_pixels"):
        open_video(path, reader)
    for depth in ("all", "ends"):
        finding = examine(VideoJob(str(path), reader, depth))
        assert (finding.kind, "data.max_pixels" in finding.reason) == ("broken", True)
    with open_video(path, reader, 5120 * 3840) as source:
        assert source.frames([0]).shape == (1, 3840, 5120, 3)


@pytest.mark.parametrize(("size", "read"), [((4096, 16), True), ((4096, 8), False), ((1, 1), True)])
def test_the_limit_counts_the_enlarged_test_view_of_a_narrow_video(tmp_path, size, read):
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    path = encode(tmp_path / "strip.avi", [pixels], "ffv1", pix_fmt="bgr0")
    for reader in BACK_ENDS:
        if read:
            with open_video(path, reader) as source:
                assert source.frames([0]).shape == (1, height, width, 3)
        else:
            with pytest.raises(VideoError, match="short side enlarged to 256, has more than"):
                open_video(path, reader)


def test_a_video_whose_frames_become_larger_is_refused(tmp_path):
    """The container gives only the size of its first frames."""
    small, large = (
        draw(tmp_path / f"{side}.ts", count=4, gop=2, size=(side, side)) for side in (256, 512)
    )
    path = tmp_path / "both.ts"
    path.write_bytes(small.read_bytes() + large.read_bytes())
    with open_video(path) as source:
        assert {frame.shape for frame in source.in_order()} == {(256, 256, 3), (512, 512, 3)}
    with open_video(path, max_pixels=256 * 256) as source, pytest.raises(VideoError):
        list(source.in_order())


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
    path = encode(tmp_path / "video.mp4", pictures(25, 64), "mpeg4", {"g": "100"}, muxer=muxer)
    with open_video(path, reader) as source:
        assert len(source) == 25
    path.write_bytes(change(path.read_bytes(), count))
    start = time.monotonic()
    with pytest.raises(VideoError, match=f"video.mp4 .*: its index has {entries} entries for"):
        open_video(path, reader)
    finding = examine(VideoJob(str(path), reader))
    assert (finding.kind, "its index has" in finding.reason) == ("broken", True)
    assert time.monotonic() - start < 10


def test_packets_of_a_long_file_are_not_kept(tmp_path, monkeypatch):
    """Without stored packets, frames are decoded in order and the pixels are equal."""
    path = write(tmp_path / "video.mp4", pictures(25), bf="0")
    with open_video(path, "pyav") as source:
        expected = source.frames([3, 20])
    monkeypatch.setattr(pyav_reader, "MAX_KEPT_PACKETS", 20)
    with open_video(path, "pyav") as source:
        assert source._packets == []
        np.testing.assert_array_equal(source.frames([3, 20]), expected)


@pytest.mark.parametrize("reader", BACK_ENDS)
@pytest.mark.parametrize("name", ["live.mp4", "live.m3u8", "tagged.m3u8", "list.mp4", "list.txt"])
def test_playlists_are_refused_at_once(tmp_path, reader, name):
    draw(tmp_path / "neighbour.mp4", count=4)
    tag = b"ID3\3\0\0\0\0\0\0" if name == "tagged.m3u8" else b""
    text = "ffconcat version 1.0\nfile neighbour.mp4\n" if "list" in name else PLAYLIST
    (tmp_path / name).write_bytes(tag + text.encode())
    path = str(tmp_path / name)
    code = f"from utils.video.decoders import open_video; open_video({path!r}, {reader!r})"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=20)
    assert "WrongContent: cannot read" in result.stderr
    assert examine(VideoJob(str(tmp_path / name), reader)).kind == "wrong extension"


def test_a_playlist_is_also_refused_by_its_format(tmp_path):
    """Even if its beginning is not that of a playlist."""
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile neighbour.mp4\n")
    with pytest.raises(WrongContent, match="no video in one file"):
        ExactVideo(tmp_path / "list.mp4")


@pytest.mark.parametrize("reader", BACK_ENDS)
def test_a_name_is_a_file_and_never_an_address(tmp_path, monkeypatch, reader):
    monkeypatch.chdir(tmp_path)
    path = draw(tmp_path / "good.mp4", count=4)
    for name in ("concat:good.mp4|good.mp4", "12:30.mp4", "-i.mp4", "a%03d.mp4"):
        os.link(path, name)
        with open_video(name, reader) as source:
            assert len(source) == 4


@pytest.mark.parametrize("name", [LATIN + b".mp4", b"n" * 251 + b".mp4", b"\x1b[31m\n.mp4"])
def test_odd_names_are_read_and_scanned(tmp_path, name):
    path = tmp_path / os.fsdecode(name)
    draw(tmp_path / "good.mp4", count=4).rename(path)
    for reader in BACK_ENDS:
        with open_video(path, reader) as source:
            assert source.frames([3]).shape[0] == 1
    assert examine(VideoJob(str(path))).kind == "good"


def test_names_are_escaped_in_errors_and_in_the_log(tmp_path, log_messages):
    path = tmp_path / os.fsdecode(b"\x1b[2J" + LATIN + b"\xc2\x9b.mp4")
    path.write_bytes(b"no video")
    with pytest.raises(VideoError) as caught:
        open_video(path)
    UnreadableFiles([Record(str(path), None, 0, 1)]).add(0, str(caught.value))
    for text in (str(caught.value), *log_messages):
        assert r"\x1b[2Jcaf\xe9\xe8\xfc\xdf\xff\x9b.mp4" in text
        assert text.isprintable()


def damage_video(path):
    """Changes bytes of the pictures, so that they decode with errors."""
    data = bytearray(path.read_bytes())
    data[(data.index(b"mdat") + len(data)) // 2] ^= 0x5A
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_a_video_that_decodes_with_errors_is_damaged(tmp_path, codec):
    path = write(tmp_path / "damaged.mp4", pictures(40, 160, 128), codec, g="10")
    assert examine(VideoJob(str(path))).kind == "good"
    with open_video(damage_video(path)) as source:
        assert len(source.frames(range(len(source)))) == 40
        assert 0 < source.damaged < 40
    finding = examine(VideoJob(str(path)))
    assert finding.kind == "damaged"
    assert re.fullmatch(r"the decoder marks \d+ of 40 frames as damaged", finding.reason)


def test_an_unexpected_error_of_a_scan_is_the_finding_broken(tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("of a library")

    monkeypatch.setattr(integrity, "check_length", fail)
    finding = examine(VideoJob(str(draw(tmp_path / "a.mp4", count=4))))
    assert finding == ("broken", "ZeroDivisionError: of a library", 0)


def make_png_bomb(width: int, height: int) -> bytes:
    """A PNG of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def make_jpeg_bomb(tmp_path, side: int, **options) -> bytes:
    """A JPEG file of 16 x 16 with the size `side` x `side` in its header."""
    Image.fromarray(picture(1, 16, 16)).save(tmp_path / "small.jpg", **options)
    data = bytearray((tmp_path / "small.jpg").read_bytes())
    position = data.index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0") + 5
    data[position : position + 4] = struct.pack(">HH", side, side)
    return bytes(data)


@pytest.mark.parametrize("side", [5000, 30_000, 65_500])
@pytest.mark.parametrize("kind", ["png", "jpeg", "progressive"])
def test_images_above_the_limit_are_a_video_error(tmp_path, side, kind):
    data = make_png_bomb(side, side)
    if kind != "png":
        data = make_jpeg_bomb(tmp_path, side, progressive=kind == "progressive")
    (tmp_path / "00001.jpg").write_bytes(data)
    start = time.monotonic()
    with pytest.raises(VideoError, match=f"{tmp_path}/00001.jpg with PIL.*pixels"):
        FrameFolder(tmp_path, 1, "{:05d}.jpg").frames([0])
    assert examine(VideoJob(str(tmp_path), num_frames=1, image_tmpl="{:05d}.jpg")).kind == "broken"
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("form", ["baseline", "progressive", "grey", "exif", "cmyk"])
def test_the_size_in_a_jpeg_header_equals_that_of_the_decoder(tmp_path, form):
    image = Image.fromarray(picture(1, 70, 40))
    image = image.convert({"grey": "L", "cmyk": "CMYK"}.get(form, "RGB"))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "\xff\xc0 a comment"
    options = {"exif": exif} if form == "exif" else {}
    image.save(tmp_path / "a.jpg", progressive=form == "progressive", **options)
    data = (tmp_path / "a.jpg").read_bytes()
    assert jpeg_size(data) == (70, 40)
    with pytest.raises(ValueError, match="70x40"):
        read_jpeg(data, "RGB", 70 * 256 * 256 // 40 - 1)
    for end in range(len(data)):
        assert jpeg_size(data[:end]) in (None, (70, 40))


def test_a_pipe_among_frames_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "00001.jpg")
    with pytest.raises(VideoError, match="not a file"):
        FrameFolder(tmp_path, 1, "{:05d}.jpg").frames([0])


def test_a_scan_refuses_a_folder_a_pipe_and_a_device(tmp_path):
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "device.mp4").symlink_to("/dev/zero")
    for path in tmp_path.iterdir():
        assert examine(VideoJob(str(path))).kind == "missing"
        with pytest.raises(VideoError, match="no such file"):
            open_video(path)


def test_a_growing_file_is_read_up_to_its_first_length(tmp_path):
    data = draw(tmp_path / "whole.mkv", count=60).read_bytes()
    path = tmp_path / "growing.mkv"
    path.write_bytes(data[: len(data) // 2])
    with open_video(path) as source:
        with open(path, "ab") as file:
            file.write(data[len(data) // 2 :])
        assert np.ptp(source.frames([0, len(source) - 1])) > 0
