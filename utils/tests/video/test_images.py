"""Image files of many formats become the pixels that they show, or are refused."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from utils.tests.video.videos import picture
from utils.video.frame_folder import FrameFolder
from utils.video.images import open_image
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


def encode_deep(form):
    """A grey image of 16 bits a pixel."""
    if form == "PPM":
        return b"P5 70 40 65535\n" + DEEP.astype(">u2").tobytes()
    if form == "big TIFF":
        image = Image.frombytes("I;16B", (70, 40), DEEP.astype(">u2").tobytes())
        return encode(image, "TIFF")
    return encode(Image.fromarray(DEEP), form)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "big TIFF", "PPM", "JPEG2000"])
def test_the_upper_bits_of_a_deep_grey_image_are_read(form):
    data = encode_deep(form)
    np.testing.assert_array_equal(open_image(data, "L"), GREY)
    np.testing.assert_array_equal(open_image(data), np.repeat(GREY[..., None], 3, axis=2))


@pytest.mark.parametrize("alpha", [False, True])
def test_the_upper_bits_of_a_deep_colour_image_are_read(alpha):
    import cv2

    deep = (COLOURS[..., ::-1].astype(np.uint16) << 8) + 200
    if alpha:
        deep = np.concatenate((deep, np.full((40, 70, 1), 999, np.uint16)), axis=2)
    data = cv2.imencode(".png", deep)[1].tobytes()
    np.testing.assert_array_equal(open_image(data), COLOURS)


@pytest.mark.parametrize(("dtype", "word"), [(np.float32, "float"), (np.int32, "whole")])
def test_numbers_without_a_white_are_refused_by_name(tmp_path, dtype, word):
    Image.fromarray(GREY.astype(dtype)).save(tmp_path / "00001.tif")
    with pytest.raises(VideoError, match=rf"00001\.tif .*{word} numbers of 32 bits"):
        FrameFolder(tmp_path, 1, "{:05d}.tif").frames([0])


def make_palette():
    image = Image.fromarray(COLOURS).quantize(200)
    image.info["transparency"] = bytes(range(200))
    return image


MODES = {
    "1": lambda: Image.fromarray(GREY).convert("1"),
    "palette": make_palette,
    "LA": lambda: Image.merge("LA", [Image.fromarray(GREY), Image.new("L", (70, 40), 9)]),
    "RGBA": lambda: Image.fromarray(np.dstack((COLOURS, GREY))),
    "CMYK": lambda: Image.fromarray(COLOURS).convert("CMYK"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", MODES)
def test_other_modes_become_the_colours_of_pil(name):
    image = MODES[name]()
    middle = image.convert("RGBA") if name == "palette" else image
    data = encode(image, "TIFF" if name == "CMYK" else "PNG")
    np.testing.assert_array_equal(open_image(data), np.asarray(middle.convert("RGB")))


def test_a_jpeg_in_cmyk_has_the_colours_of_pil():
    data = encode(Image.fromarray(COLOURS).convert("CMYK"), "JPEG")
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(open_image(data), np.asarray(image.convert("RGB")))


def test_a_jpeg_in_ycck_has_the_colours_of_its_inks():
    """The inks as YCbCr, black beside them; the transform 2 in the Adobe segment says so."""
    inks = Image.fromarray(np.dstack((COLOURS, GREY // 2)), "CMYK")
    *colours, black = inks.split()
    converted = Image.merge("RGB", colours).convert("YCbCr").split()
    stored = [ImageOps.invert(channel) for channel in converted]  # PIL inverts what it writes
    data = encode(Image.merge("CMYK", [*stored, black]), "JPEG", quality=100, subsampling=0)
    transform = data.index(b"Adobe") + 11
    data = data[:transform] + b"\2" + data[transform + 1 :]
    expected = np.asarray(inks.convert("RGB")).astype(int)
    assert np.abs(open_image(data) - expected).max() <= 6


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_picture_of_an_animation_is_read(form):
    pictures = [Image.fromarray(picture(k, 70, 40)).quantize(256).convert("RGB") for k in (5, 6)]
    options = {"lossless": True} if form == "WEBP" else {}
    data = encode(pictures[0], form, save_all=True, append_images=pictures[1:], **options)
    first = open_image(data).astype(int)
    assert np.abs(first - np.asarray(pictures[0])).mean() < 3


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", [*range(1, 9), 0, 99])
def test_exif_turns_and_mirrors_an_image(form, value):
    exif = Image.Exif()
    exif[0x0112] = value
    for pixels in (COLOURS, GREY):
        data = encode(Image.fromarray(pixels), form, exif=exif)
        with Image.open(io.BytesIO(data)) as image:
            expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        np.testing.assert_array_equal(open_image(data), expected)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", [*range(1, 9), 0, 99])
@pytest.mark.parametrize(
    "text", ['tiff:Orientation="%d"', "<tiff:Orientation>%d</tiff:Orientation>"]
)
def test_an_orientation_in_xmp_turns_an_image_without_one_in_exif(form, value, text):
    xmp = b"<x:xmpmeta>" + text.encode() % value + b"</x:xmpmeta>"
    exif = Image.Exif()
    for pixels in (COLOURS, GREY):
        image = Image.fromarray(pixels)
        turned = Image.fromarray(open_image(encode(image, form)))
        turned.getexif()[0x0112] = value
        expected = np.asarray(ImageOps.exif_transpose(turned))
        np.testing.assert_array_equal(open_image(encode_xmp(image, form, xmp)), expected)
        exif[0x0112] = 1
        upright = open_image(encode_xmp(image, form, xmp, exif=exif))
        np.testing.assert_array_equal(upright, open_image(encode(image, form)))


@pytest.mark.parametrize("order", "<>")
def test_an_orientation_may_have_16_or_32_bits(order):
    head = {"<": b"II*\0", ">": b"MM\0*"}[order]
    for entry in (
        struct.pack(f"{order}HHIHH", 0x0112, 3, 1, 6, 0),
        struct.pack(f"{order}HHII", 0x0112, 4, 1, 6),
    ):
        exif = b"Exif\0\0" + head + struct.pack(f"{order}IH", 8, 1) + entry + bytes(4)
        data = encode(Image.fromarray(COLOURS), "JPEG", exif=exif)
        assert open_image(data).shape == (*COLOURS.shape[1::-1], 3)


def test_damaged_exif_data_do_not_matter():
    data = encode(
        Image.fromarray(COLOURS), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(9)
    )
    assert open_image(data).shape == COLOURS.shape
