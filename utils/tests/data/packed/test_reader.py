"""Packed videos: frame numbers are exact, few packets are decoded, and the PSNR is right."""

import multiprocessing
import shutil
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scripts.data.integrity import Finding, VideoJob
from scripts.data.packing.encoder import (
    EncodedVideo,
    EncodeOptions,
    build_encode_options,
    compare_with_original,
    pack_video,
)
from scripts.data.packing.shard_writer import Spool
from tests.numbered_videos import read_number, write_numbered_video
from utils.data.packed.format import KEY, NON_REFERENCE, decode_table
from utils.data.packed.reader import PackedVideo, PackLocation
from utils.video.decoders import open_video
from utils.video.reader import MAX_PIXELS, VideoError

TEMPLATE = "img_{:05d}.jpg"
FRAMES = 50
OPTIONS = EncodeOptions(256, 12, 10)


@pytest.fixture(scope="module")
def source_video(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("original") / "numbers.mp4"
    write_numbered_video(path, frames=FRAMES, width=96, height=64, rate=25)
    return path


@cache
def pack_copy(path: Path, options: EncodeOptions, **more) -> EncodedVideo:
    result = pack_video((0, VideoJob(str(path), "auto", "ends", **more), options))
    assert isinstance(result, EncodedVideo), result
    return result


def open_pack(result: EncodedVideo, folder: Path, max_pixels: int = MAX_PIXELS) -> PackedVideo:
    """The packed video, stored after 7 other bytes of a file."""
    shard = folder / "shard"
    shard.write_bytes(b"x" * 7 + result.head + result.payload + b"y")
    size = len(result.head) + len(result.payload)
    position = PackLocation(str(shard), offset=7, head=len(result.head), size=size, crc=result.crc)
    return PackedVideo("original", position, max_pixels)


@pytest.fixture(scope="module")
def packed_copy(source_video, tmp_path_factory) -> PackedVideo:
    return open_pack(pack_copy(source_video, OPTIONS), tmp_path_factory.mktemp("shards"))


def test_frame_numbers_are_exact_in_any_order(packed_copy):
    assert (len(packed_copy), packed_copy.fps) == (FRAMES, 25.0)
    for indices in (range(FRAMES), [49, 0, 0, 13, 12, 11], [24], [1, 47, 48]):
        assert [read_number(frame) for frame in packed_copy.frames(indices)] == list(indices)
    assert [read_number(frame) for frame in packed_copy.in_order()] == list(range(FRAMES))


def test_the_psnr_is_computed_over_all_frames(source_video, tmp_path):
    with open_video(source_video) as video:
        expected = video.frames(range(FRAMES))
    result = pack_copy(source_video, OPTIONS)
    results = open_pack(result, tmp_path).frames(range(FRAMES)).astype(np.float32)
    whole = 10 * np.log10(255**2 / np.mean((results - expected) ** 2))
    assert result.psnr > 35
    assert abs(whole - result.psnr) < 3, "three frames represent all"
    nearer = pack_copy(source_video, OPTIONS._replace(quality=1))
    assert nearer.psnr > pack_copy(source_video, OPTIONS._replace(quality=40)).psnr


def test_groups_are_closed_and_few_packets_are_decoded(source_video, tmp_path):
    packed = open_pack(pack_copy(source_video, OPTIONS), tmp_path)
    table = packed._table
    keys = np.flatnonzero(table.kinds == KEY)
    assert sorted(table.numbers[keys]) == [0, 12, 24, 36, 48]
    assert np.mean(table.kinds == NON_REFERENCE) > 0.5
    for indices in range(FRAMES):
        assert len(list(packed._needed({indices}))) <= 6
    intra = open_pack(pack_copy(source_video, OPTIONS._replace(gop=1)), tmp_path)
    assert set(intra._table.kinds) == {KEY}
    assert [read_number(frame) for frame in intra.frames([31, 7])] == [31, 7]


@pytest.mark.parametrize(
    ("size", "short_side", "expected"),
    [
        ((96, 64), 32, (48, 32)),
        ((64, 96), 32, (32, 48)),
        ((96, 64), 64, (96, 64)),
        ((96, 64), 100, (96, 64)),
        ((96, 64), 0, (96, 64)),
        ((102, 64), 33, (52, 34)),
    ],
)
def test_a_packed_copy_has_the_expected_size(size, short_side, expected, tmp_path):
    write_numbered_video(tmp_path / "a.mp4", 5, *size, 25)
    options = OPTIONS._replace(short_side=short_side)
    frames = open_pack(pack_copy(tmp_path / "a.mp4", options), tmp_path).frames(range(5))
    assert frames.shape == (5, *expected[::-1], 3)
    assert [read_number(frame) for frame in frames] == list(range(5))


def test_pictures_above_the_limit_are_refused(tmp_path):
    """The header is checked first. If its size is too small, frames are refused before decoding."""
    write_numbered_video(tmp_path / "a.mp4", frames=5, width=320, height=256, rate=25)
    whole = pack_copy(tmp_path / "a.mp4", OPTIONS)
    limit = 320 * 256
    assert open_pack(whole, tmp_path, max_pixels=limit).frames([4]).shape == (1, 256, 320, 3)
    line = rf"{tmp_path / 'shard'}: a frame of 320x256 has more than \d+ pixels, .*data.max_pixels"
    with pytest.raises(VideoError, match=line):
        open_pack(whole, tmp_path, max_pixels=limit - 1)
    less = whole._replace(head=decode_table(whole.head)._replace(width=256).encode())
    with pytest.raises(VideoError, match=line):
        open_pack(less, tmp_path, max_pixels=limit - 1).frames([4])


@pytest.mark.parametrize(
    "change", [{"frames": 0}, {"frames": 2**32 - 1}, {"fps": -1.0}, {"fps": float("nan")}]
)
def test_an_impossible_header_is_refused(source_video, change, tmp_path):
    result = pack_copy(source_video, OPTIONS)
    table = decode_table(result.head)._replace(**change)
    with pytest.raises(VideoError, match="head is damaged"):
        open_pack(result._replace(head=table.encode()), tmp_path)


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_a_video_of_few_frames_is_packed(frames, tmp_path):
    write_numbered_video(tmp_path / "a.mp4", frames=frames, width=96, height=64, rate=25)
    packed = open_pack(pack_copy(tmp_path / "a.mp4", OPTIONS), tmp_path)
    assert [read_number(frame) for frame in packed.in_order()] == list(range(frames))


def write_frame_folder(folder: Path, names: list[str], size=(47, 33)) -> None:
    rng = np.random.RandomState(1)
    for name in names:
        small = Image.fromarray(rng.randint(0, 256, (5, 6, 3), np.uint8).astype(np.uint8))
        folder.mkdir(exist_ok=True)
        small.resize(size, Image.Resampling.BICUBIC).save(folder / name, quality=92)


def test_a_folder_of_frames_of_an_odd_size_is_packed(tmp_path):
    write_frame_folder(tmp_path / "rgb", [f"img_{k:05d}.jpg" for k in range(1, 6)])
    video = pack_copy(tmp_path / "rgb", options=OPTIONS, num_frames=5, image_tmpl=TEMPLATE)
    assert open_pack(video, tmp_path).frames([4]).shape == (1, 33, 47, 3)
    assert video.psnr > 25


def test_a_fork_does_not_wait_for_a_thread_that_converted_colours(tmp_path):
    """Encodes and decodes odd sizes in a thread that is alive when another thread forks."""
    write_frame_folder(tmp_path / "rgb", ["img_00001.jpg"])
    converted = threading.Event()
    free = threading.Event()

    def work() -> None:
        result = pack_copy(tmp_path / "rgb", options=OPTIONS, num_frames=1, image_tmpl=TEMPLATE)
        open_pack(result, tmp_path).frames([0])
        converted.set()
        free.wait()

    other = threading.Thread(target=work)
    other.start()
    assert converted.wait(60)
    child = multiprocessing.get_context("fork").Process(target=bool)
    child.start()
    child.join(20)
    ended = child.exitcode
    child.kill()
    free.set()
    other.join()
    assert ended == 0


def test_an_unreadable_video_is_reported(source_video, tmp_path):
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(source_video.read_bytes()[:2000])
    for path, kind in ((cut, "truncated"), (tmp_path / "none.mp4", "missing")):
        result = pack_video((0, VideoJob(str(path), "auto", "ends"), OPTIONS))
        assert isinstance(result, Finding)
        assert result.kind == kind


def test_an_error_about_damage_names_the_shard(source_video, tmp_path):
    result = pack_copy(source_video, OPTIONS)
    for damaged in (
        result._replace(head=b"no" + result.head[2:]),
        result._replace(payload=bytes(len(result.payload))),
    ):
        with pytest.raises(VideoError, match=f"cannot read original with packed.*{tmp_path}/shard"):
            open_pack(damaged, tmp_path).frames([20])
    short = open_pack(result, tmp_path)
    with open(tmp_path / "shard", "r+b") as file:
        file.truncate(len(result.head) + 20)
    with pytest.raises(VideoError, match="shard is cut short"):
        short.frames([FRAMES - 1])


def test_reading_a_packet_with_a_flipped_bit_is_an_error(source_video, tmp_path):
    result = pack_copy(source_video, OPTIONS)
    payload = bytearray(result.payload)
    payload[-10] ^= 1
    packed = open_pack(result._replace(payload=bytes(payload)), tmp_path)
    assert read_number(packed.frames([20])[0]) == 20
    with pytest.raises(VideoError, match=f"packet {FRAMES - 1} is damaged: its checksum differs"):
        packed.frames(range(FRAMES))


def test_a_truncated_table_is_refused(source_video):
    head = pack_copy(source_video, OPTIONS).head
    assert decode_table(head).frames == FRAMES
    for data in (b"", head[:20], head[:-1], b"no" + head[2:]):
        with pytest.raises(ValueError, match="packed|cut short"):
            decode_table(data)


def test_a_different_picture_has_a_low_psnr(source_video):
    """The comparison of a copy with its original must be able to fail."""
    result = pack_copy(source_video, OPTIONS)
    originals = {3: np.zeros((64, 96, 3), np.uint8)}
    job = VideoJob(str(source_video))
    assert (
        compare_with_original(job, head=result.head, payload=result.payload, originals=originals)
        < 15
    )


def test_shards_may_move_while_they_are_open(source_video, tmp_path):
    result = pack_copy(source_video, OPTIONS)
    packed = open_pack(result, tmp_path)
    shutil.move(tmp_path / "shard", tmp_path / "elsewhere")
    assert read_number(packed.frames([5])[0]) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": 52}, "--quality is 0 to 51, not 52"),
        (
            {"codec": "jpeg"},
            "--codec jpeg: packs are H.264 only; .*extract_frames.py",
        ),
        ({"gop": 0}, "--gop must be at least 1, not 0"),
        ({"short_side": -3}, "--short_side must be at least 0, not -3"),
    ],
)
def test_impossible_encode_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build_encode_options(**options)
    assert build_encode_options(codec="video") == EncodeOptions(256, 12, 18)


def test_a_video_larger_than_a_page_is_left_out(source_video, tmp_path):
    spool = Spool(tmp_path, "shard", page=4096)
    spool.add(3, pack_copy(source_video, OPTIONS))
    assert spool.bad[3].kind == "too large"
    assert not spool.videos
