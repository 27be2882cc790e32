"""Image files as pixels: JPEG by OpenCV, which is faster, all others by PIL.

The size in the header is checked before an image is decoded. Images are read as their files say:

* of an animation the first picture;
* 16 bits a channel become 8 by leaving out the lower eight, as PIL does for colours;
* numbers of 32 bits, whole or float, are refused: such files do not say which one is white;
* transparency is left out, and CMYK converted, both by PIL;
* the orientation in EXIF, or in XMP if EXIF has none, turns and mirrors the picture.
"""

import contextlib
import io
import re
import struct
from typing import NamedTuple, Optional

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from utils.video.libraries import load_library
from utils.video.orientation import EXIF_ORIENTATIONS, UPRIGHT, Orientation
from utils.video.reader import check_size

PIL_PIXELS = 178_956_970  # PIL refuses larger images
# JPEG markers of segments with the image size, and markers without a length.
SIZE_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
MARKERS_WITHOUT_LENGTH = {0x00, 0x01, *range(0xD0, 0xDA), 0xFF}
APP1 = 0xE1  # the marker of EXIF and XMP
EXIF_HEAD = b"Exif\0\0"
XMP_HEAD = b"http://ns.adobe.com/xap/1.0/\0"
XMP_ORIENTATION = re.compile(rb"tiff:Orientation(?:\s*=\s*[\"']|>)\s*(\d+)")
ORIENTATION_TAG = 0x0112
LONG = 4  # the type of a number of 32 bits, which some programs write instead of 16
TIFF_BITS = 258  # tags of TIFF: the bits of a number, and whether 0 is black or white
TIFF_BLACK = 262
TIFF_PLANES = 284
WHITE_IS_ZERO = 0
# PIL's mode I holds 32 bits, but of these formats 16 (PNG: Pillow before 11).
FORMATS_OF_16_BITS = {"PNG", "PPM"}


class JpegHead(NamedTuple):
    width: int
    height: int
    channels: int
    orientation: Orientation


def open_image(data: bytes, mode: str = "RGB", max_pixels: int = PIL_PIXELS) -> np.ndarray:
    """Pixels of an image file: uint8 (H, W, 3) for mode RGB, grey (H, W) for L.

    Raises ValueError for more than `max_pixels` pixels, or numbers of 32 bits, and errors of many
    classes for a damaged image.
    """
    pixels = read_jpeg(data, mode, max_pixels)
    return read_by_pil(data, mode, max_pixels) if pixels is None else pixels


def read_jpeg(data: bytes, mode: str, max_pixels: int = PIL_PIXELS) -> Optional[np.ndarray]:
    """Pixels (H, W, 3), or grey (H, W), equal to PIL's and 1.3 times as fast.

    None if PIL must read it: not a JPEG file, broken, CMYK, or a colour image for mode "L". Raises
    ValueError for more than `max_pixels` pixels.
    """
    cv2 = load_library("opencv")
    head = read_jpeg_head(data)
    if head is None or cv2 is None:
        return None
    check_size(head.width, head.height, max_pixels)
    if head.channels > 3 or (mode == "L" and head.channels != 1):
        return None
    flags = cv2.IMREAD_COLOR_RGB if mode == "RGB" else cv2.IMREAD_UNCHANGED
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION)
    return None if pixels is None else np.ascontiguousarray(head.orientation.apply(pixels))


def read_jpeg_head(data: bytes) -> Optional[JpegHead]:
    """The head of a JPEG file, as its decoder reads it; None if PIL must read it.

    An image of a few bytes may declare thousands of millions of pixels, so the size is checked
    before decoding. This takes a fifth of the time that PIL takes.
    """
    position = 2
    end = len(data) - 10
    exif = b""
    xmp = b""
    while data[:2] == b"\xff\xd8" and position <= end and data[position] == 0xFF:
        marker = data[position + 1]
        if marker in SIZE_MARKERS:
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            width = int.from_bytes(data[position + 7 : position + 9], "big")
            channels = data[position + 9]
            orientation = find_orientation(exif, xmp)
            return JpegHead(width, height=height, channels=channels, orientation=orientation)
        if marker in MARKERS_WITHOUT_LENGTH:
            return None
        length = max(int.from_bytes(data[position + 2 : position + 4], "big"), 2)
        content = data[position + 4 : position + 2 + length]
        if marker == APP1 and content.startswith(EXIF_HEAD):
            exif = exif or content
        elif marker == APP1 and content.startswith(XMP_HEAD):
            xmp = xmp or content
        position += 2 + length
    return None


def find_orientation(exif: bytes, xmp: bytes) -> Orientation:
    """The orientation in EXIF data; if they have none, in XMP data; else upright."""
    value = read_exif(exif)
    if value is None:
        found = XMP_ORIENTATION.search(xmp)
        value = int(found[1][:3]) if found else None
    return EXIF_ORIENTATIONS.get(value or 0, UPRIGHT)


def read_exif(content: bytes) -> Optional[int]:
    """The number of the orientation that EXIF data state; None if they have none or are damaged."""
    data = content[len(EXIF_HEAD) :] if content.startswith(EXIF_HEAD) else content
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        return None
    with contextlib.suppress(struct.error):  # the data end too early
        (start,) = struct.unpack_from(f"{order}I", data, 4)
        (entries,) = struct.unpack_from(f"{order}H", data, start)
        for position in range(start + 2, start + 2 + 12 * entries, 12):
            tag, kind = struct.unpack_from(f"{order}HH", data, position)
            if tag == ORIENTATION_TAG:
                form = "I" if kind == LONG else "H"
                (value,) = struct.unpack_from(f"{order}{form}", data, position + 8)
                return value
    return None


def read_by_pil(data: bytes, mode: str, max_pixels: int = PIL_PIXELS) -> np.ndarray:
    """`open_image` by PIL."""
    with Image.open(io.BytesIO(data)) as image:
        check_size(*image.size, max_pixels)
        image.load()
        xmp = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or b""
        xmp = xmp.encode() if isinstance(xmp, str) else xmp  # PNG has it as text
        is_turned = image.format == "TIFF"  # which PIL turns by its own tags, and by XMP
        exif = image.info.get("exif") or b""
        orientation = UPRIGHT if is_turned else find_orientation(exif, xmp)
        return np.ascontiguousarray(orientation.apply(convert(image, mode)))


def convert(image: Image.Image, mode: str) -> np.ndarray:
    """The pixels of an image in memory; ValueError if its numbers have 32 bits."""
    if image.mode == "F" or (image.mode == "I" and image.format not in FORMATS_OF_16_BITS):
        kind = "float" if image.mode == "F" else "whole"
        raise ValueError(f"its pixels are {kind} numbers of 32 bits; save it with 8 or 16 bits")
    # PIL leaves 12 bits, and black, as they are, and takes planes of 16 bits for 8.
    tags: dict = dict(image.tag_v2) if isinstance(image, TiffImageFile) else {}
    if tags.get(TIFF_PLANES) == 2 and max(tags.get(TIFF_BITS, (8,))) > 8 and image.mode[0] != "I":
        raise ValueError("its colours are planes of more than 8 bits; save it with 8 bits")
    if image.mode.startswith("I"):
        (bits,) = tags.get(TIFF_BITS, (16,))
        grey = (np.asarray(image) >> bits - 8).astype(np.uint8)
        if tags.get(TIFF_BLACK) == WHITE_IS_ZERO:
            grey = 255 - grey
        return grey if mode == "L" else np.repeat(grey[..., None], 3, axis=2)
    image.info.pop("transparency", None)  # PIL would warn of that of a palette
    return np.asarray(image.convert(mode))
