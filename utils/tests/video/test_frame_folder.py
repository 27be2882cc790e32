"""Folders of images: frame numbers, pixels, flow, and bad images, which are refused by name."""

import io
import itertools
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from scripts.data.prepare.integrity import VideoJob, examine
from utils.tests.video.videos import picture, read_bits
from utils.video.images import FrameFolder
from utils.video.reader import Segment, VideoError


def write_jpeg(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=90)
    return np.asarray(Image.open(path).convert("RGB" if pixels.ndim == 3 else "L"))


@pytest.mark.parametrize("first", [0, 1, 2, 7, 123])
@pytest.mark.parametrize("template", ["img_{:03d}.png", "{:05d}.png", "a{}/x[1].png"])
def test_the_first_frame_is_the_first_file_that_exists(tmp_path, first, template):
    for number in range(first, first + 4):
        path = tmp_path / template.format(number)
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(picture(number, 70, 40)).save(path)
    folder = FrameFolder(tmp_path, num_frames=4, image_tmpl=template, fps=2.0)
    assert len(FrameFolder(tmp_path, None, template)) == 4
    assert read_bits(folder.frames([0, 3])) == [first, first + 3]
    assert read_bits(folder.cut(Segment(1, 2)).frames([0, 1])) == [first + 2, first + 3]
    flow = "{:06d}-{}_{:05d}.png"
    (tmp_path / "12").mkdir()
    for number, axis in itertools.product(range(first, first + 2), "xy"):
        image = Image.fromarray(picture(number, 70, 40)[..., 0])
        image.save(tmp_path / "12" / flow.format(12, axis, number))
    assert len(FrameFolder(tmp_path / "12", None, flow, flow=True)) == 2
    (tmp_path / template.format(first + 1)).unlink()
    with pytest.raises(VideoError, match=f"frame {first + 1} is missing"):
        FrameFolder(tmp_path, None, template)


@pytest.mark.parametrize("template", ["flow_{}_{:05d}.jpg", "{:06d}-{}_{:05d}.jpg", "{:06d}.jpg"])
def test_flow_is_read_from_two_files_or_from_the_channels_of_one(tmp_path, template):
    folder = tmp_path / "123"
    expected = []
    for number in (1, 2):
        pixels = picture(number, 70, 40)
        if template == "{:06d}.jpg":
            expected.append(write_jpeg(folder / template.format(number), pixels)[..., :2])
            continue
        fields = (123,) if template.startswith("{:06d}") else ()
        files = [folder / template.format(*fields, axis, number) for axis in "xy"]
        axes = [write_jpeg(file, pixels[..., k]) for k, file in enumerate(files)]
        expected.append(np.stack(axes, axis=2))
    frames = FrameFolder(folder, num_frames=2, image_tmpl=template, flow=True).frames([1, 0])
    np.testing.assert_array_equal(frames, expected[::-1])


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "text"])
def test_an_unreadable_frame_is_refused_by_name(tmp_path, damage):
    for i in (1, 2, 3):
        write_jpeg(tmp_path / f"{i:05d}.jpg", picture(i, 70, 40))
    bad = tmp_path / "00002.jpg"
    data = bad.read_bytes()
    bad.unlink()
    if damage != "missing":
        bad.write_bytes({"empty": b"", "cut": data[:400], "text": b"no picture"}[damage])
    source = FrameFolder(tmp_path, 3, "{:05d}.jpg")
    assert source.frames([0, 2]).shape == (2, 40, 70, 3)
    with pytest.raises(VideoError, match=str(bad)):
        source.frames([0, 1])


def test_frames_of_two_sizes_and_a_pipe_among_frames_are_refused(tmp_path):
    write_jpeg(tmp_path / "00001.jpg", picture(1, 70, 40))
    write_jpeg(tmp_path / "00002.jpg", picture(2, 70, 8))
    os.mkfifo(tmp_path / "00003.jpg")  # reading it would block
    for last, words in ((1, "frame 1 is"), (2, "not a file")):
        with pytest.raises(VideoError, match=words):
            FrameFolder(tmp_path, 3, "{:05d}.jpg").frames([0, last])


def test_a_template_with_the_wrong_fields_is_refused(tmp_path):
    """The last one needs a number as the folder's name."""
    for template in ("img.jpg", "{}_{}.jpg", "{:06d}-{}_{:05d}.jpg"):
        flow = template.startswith("{:06d}")
        with pytest.raises(ValueError, match=r"data\.image_tmpl"):
            FrameFolder(tmp_path / "abc", num_frames=1, image_tmpl=template, flow=flow)


def make_bomb(side: int, kind: str) -> bytes:
    """An image file of 16 x 16 with the size `side` x `side` in its header."""
    file = io.BytesIO()
    form = "PNG" if kind == "png" else "JPEG"
    Image.fromarray(picture(1, 16, 16)).save(file, form, progressive=kind == "progressive")
    data = bytearray(file.getvalue())
    if kind == "png":
        struct.pack_into(">II", data, 16, side, side)
        struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))
    else:
        mark = b"\xff\xc2" if kind == "progressive" else b"\xff\xc0"
        struct.pack_into(">HH", data, data.index(mark) + 5, side, side)
    return bytes(data)


@pytest.mark.parametrize("side", [5000, 30_000, 65_500])
@pytest.mark.parametrize("kind", ["png", "jpeg", "progressive"])
def test_images_above_the_limit_are_a_video_error(tmp_path, side, kind):
    (tmp_path / "00001.jpg").write_bytes(make_bomb(side, kind))
    with pytest.raises(VideoError, match=f"{tmp_path}/00001.jpg with PIL.*pixels"):
        FrameFolder(tmp_path, 1, "{:05d}.jpg").frames([0])
    assert examine(VideoJob(str(tmp_path), num_frames=1, image_tmpl="{:05d}.jpg")).kind == "broken"
