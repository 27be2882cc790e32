"""Image files of many formats become the pixels that they show, or are refused."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from utils.tests.video.videos import picture
from utils.video.images import FrameFolder, open_image
from utils.video.reader import VideoError

COLOURS = picture(5, 70, 40)
GREY = COLOURS[..., 0]
DEEP = (GREY.astype(np.uint16) << 8) + 77


def encode(image, form="PNG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def encode_xmp(image, form, xmp, **options):
    """An image with XMP data, where its format has them."""
    if form == "PNG":
        text = PngImagePlugin.PngInfo()
        text.add_itxt("XML:com.adobe.xmp", xmp.decode())
        return encode(image, form, pnginfo=text, **options)
    if form == "TIFF":
        exif = options.pop("exif", Image.Exif())
        return encode(image, form, tiffinfo={700: xmp, **exif})
    return encode(image, form, xmp=xmp, **options)


def make_palette():
    image = Image.fromarray(COLOURS).quantize(200)
    image.info["transparency"] = bytes(range(200))
    return image


def encode_deep_colours(alpha):
    import cv2

    deep = (COLOURS[..., ::-1].astype(np.uint16) << 8) + 200
    if alpha:
        deep = np.concatenate((deep, np.full((40, 70, 1), 999, np.uint16)), axis=2)
    return cv2.imencode(".png", deep)[1].tobytes()


def change_tiff(pixels, tag, value):
    """A TIFF of 16 bits with another number of one of its tags."""
    data = encode(Image.fromarray(pixels), "TIFF")
    place = data.index(struct.pack("<HHI", tag, 3, 1)) + 8
    return data[:place] + struct.pack("<H", value) + data[place + 2 :]


def pack_12_bits(pixels):
    """Two numbers in three bytes, and zeros up to the size of `pixels` of 16 bits."""
    a, b = (pixels.ravel() >> 4).reshape(-1, 2).T
    packed = np.stack((a >> 4, (a & 15) << 4 | b >> 8, b & 255), axis=1).astype(np.uint8)
    return np.pad(packed.ravel(), (0, pixels.size // 2)).view(np.uint16).reshape(pixels.shape)


CMYK = Image.fromarray(COLOURS).convert("CMYK")
JPEG = encode(CMYK, "JPEG")
ALPHA = Image.new("L", (70, 40), 9)
BIG = Image.frombytes("I;16B", (70, 40), DEEP.astype(">u2").tobytes())
BLACK = Image.fromarray(GREY).convert("1")
KINDS = {  # the file, and its pixels: grey or colours
    "16 bits, PNG": (encode(Image.fromarray(DEEP)), GREY),
    "16 bits, TIFF": (encode(Image.fromarray(DEEP), "TIFF"), GREY),
    "16 bits, big TIFF": (encode(BIG, "TIFF"), GREY),
    "16 bits, white is zero": (change_tiff(65535 - DEEP, tag=262, value=0), GREY),
    "12 bits, TIFF": (change_tiff(pack_12_bits(DEEP), tag=258, value=12), GREY),
    "16 bits, PPM": (b"P5 70 40 65535\n" + DEEP.astype(">u2").tobytes(), GREY),
    "16 bits, JPEG2000": (encode(Image.fromarray(DEEP), "JPEG2000"), GREY),
    "48 bits": (encode_deep_colours(False), COLOURS),
    "64 bits": (encode_deep_colours(True), COLOURS),
    "1 bit": (encode(BLACK), np.asarray(BLACK.convert("L"))),
    "palette": (encode(make_palette()), np.asarray(make_palette().convert("RGBA"))[..., :3]),
    "LA": (encode(Image.merge("LA", [Image.fromarray(GREY), ALPHA])), GREY),
    "RGBA": (encode(Image.fromarray(np.dstack((COLOURS, GREY)))), COLOURS),
    "CMYK": (encode(CMYK, "TIFF"), np.asarray(CMYK.convert("RGB"))),
    "CMYK, JPEG": (JPEG, np.asarray(Image.open(io.BytesIO(JPEG)).convert("RGB"))),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", KINDS)
def test_pixels_are_those_that_the_file_shows(name):
    data, expected = KINDS[name]
    if expected.ndim == 2:
        np.testing.assert_array_equal(open_image(data, "L"), expected)
        expected = np.repeat(expected[..., None], 3, axis=2)
    np.testing.assert_array_equal(open_image(data), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_numbers_without_a_white_are_refused_by_name(tmp_path, dtype):
    Image.fromarray(GREY.astype(dtype)).save(tmp_path / "00001.tif")
    with pytest.raises(VideoError, match=r"00001\.tif .*32 bits"):
        FrameFolder(tmp_path, 1, "{:05d}.tif").frames([0])


def test_planes_of_16_bits_are_refused():
    """A TIFF of 6 x 4 pixels, three planes; PIL would take them for planes of 8 bits."""
    bits, offsets, counts, data = 134, 140, 152, 164  # places behind ten tags
    tags = [(256, 3, 1, 6), (257, 3, 1, 4), (258, 3, 3, bits), (259, 3, 1, 1), (262, 3, 1, 2)]
    tags += [(273, 4, 3, offsets), (277, 3, 1, 3), (278, 3, 1, 4), (279, 4, 3, counts)]
    tags += [(284, 3, 1, 2)]
    file = struct.pack("<2sHIH", b"II", 42, 8, len(tags))
    file += b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    file += struct.pack("<3H6I", 16, 16, 16, data, data + 48, data + 96, 48, 48, 48)
    with pytest.raises(ValueError, match="planes"):
        open_image(file + DEEP.tobytes()[:144])


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_picture_of_an_animation_is_read(form):
    pictures = [Image.fromarray(picture(k, 70, 40)).quantize(256).convert("RGB") for k in (5, 6)]
    options = {"lossless": True} if form == "WEBP" else {}
    data = encode(pictures[0], form, save_all=True, append_images=pictures[1:], **options)
    assert np.abs(open_image(data).astype(int) - np.asarray(pictures[0])).mean() < 3


XMP = ('tiff:Orientation="%d"', "<tiff:Orientation>%d</tiff:Orientation>")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", [*range(1, 9), 0, 99])
def test_an_orientation_in_exif_or_else_in_xmp_turns_and_mirrors_an_image(form, value):
    upright = Image.Exif()
    upright[0x0112] = 1
    for pixels in (COLOURS, GREY):
        image = Image.fromarray(pixels)
        plain = open_image(encode(image, form))
        turned = Image.fromarray(plain)
        exif = turned.getexif()
        exif[0x0112] = value
        expected = np.asarray(ImageOps.exif_transpose(turned))
        np.testing.assert_array_equal(open_image(encode(image, form, exif=exif)), expected)
        for text in XMP:
            xmp = b"<x:xmpmeta>" + text.encode() % value + b"</x:xmpmeta>"
            np.testing.assert_array_equal(open_image(encode_xmp(image, form, xmp)), expected)
            data = encode_xmp(image, form, xmp, exif=upright)
            np.testing.assert_array_equal(open_image(data), plain)
