"""Image files as pixels: JPEG by OpenCV, which is faster, all others by PIL.

The size in the header is checked before an image is decoded. Images are read as their files say:

* of an animation the first picture;
* 16 bits a channel become 8 by leaving out the lower eight, as PIL does for colours;
* numbers of 32 bits, whole or float, are refused: such files do not say which one is white;
* transparency is left out, and CMYK converted, both by PIL;
* the orientation in EXIF, or in XMP if EXIF has none, turns and mirrors the picture; PIL finds it.
"""

import contextlib
import io
import struct
from typing import NamedTuple, Optional

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from utils.video.reader import EXIF_ORIENTATIONS, UPRIGHT, Orientation, check_size, load_library

PIL_PIXELS = 178_956_970  # PIL refuses larger images
# JPEG markers of segments with the image size, and markers without a length.
SIZE_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
MARKERS_WITHOUT_LENGTH = {0x00, 0x01, *range(0xD0, 0xDA), 0xFF}
APP1 = 0xE1  # the marker of EXIF and XMP
ORIENTATION_TAG = 0x0112
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
    has_metadata: bool


def open_image(data: bytes, mode: str = "RGB", max_pixels: int = PIL_PIXELS) -> np.ndarray:
    """Pixels of an image file: uint8 (H, W, 3) for mode RGB, grey (H, W) for L.

    Raises ValueError for more than `max_pixels` pixels, or numbers of 32 bits, and errors of many
    classes for a damaged image.
    """
    pixels = read_jpeg(data, mode, max_pixels)
    if pixels is not None:
        return pixels
    with Image.open(io.BytesIO(data)) as image:
        check_size(*image.size, max_pixels)
        image.load()
        is_turned = image.format == "TIFF"  # which PIL turns by its own tags, and by XMP
        orientation = UPRIGHT if is_turned else find_orientation(image)
        return np.ascontiguousarray(orientation.apply(convert(image, mode)))


def read_jpeg(data: bytes, mode: str, max_pixels: int = PIL_PIXELS) -> Optional[np.ndarray]:
    """Pixels (H, W, 3), or grey (H, W), equal to PIL's and 1.3 times as fast.

    None if PIL must read it: not a JPEG file, broken, CMYK, or a colour image for mode "L". Raises
    ValueError for more than `max_pixels` pixels.
    """
    cv2 = load_library("opencv")
    head = read_jpeg_head(data)
    if head is None:
        return None
    check_size(head.width, head.height, max_pixels)
    if head.channels > 3 or (mode == "L" and head.channels != 1):
        return None
    flags = cv2.IMREAD_COLOR_RGB if mode == "RGB" else cv2.IMREAD_UNCHANGED
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None or not head.has_metadata:
        return pixels
    with Image.open(io.BytesIO(data)) as image:
        return np.ascontiguousarray(find_orientation(image).apply(pixels))


def read_jpeg_head(data: bytes) -> Optional[JpegHead]:
    """The head of a JPEG file, as its decoder reads it; None if PIL must read it.

    An image of a few bytes may declare thousands of millions of pixels, so the size is checked
    before decoding. This takes a fifth of the time that PIL takes.
    """
    position = 2
    end = len(data) - 10
    has_metadata = False
    while data[:2] == b"\xff\xd8" and position <= end and data[position] == 0xFF:
        marker = data[position + 1]
        if marker in SIZE_MARKERS:
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            width = int.from_bytes(data[position + 7 : position + 9], "big")
            return JpegHead(width, height, data[position + 9], has_metadata)
        if marker in MARKERS_WITHOUT_LENGTH:
            return None
        length = max(int.from_bytes(data[position + 2 : position + 4], "big"), 2)
        has_metadata = has_metadata or marker == APP1
        position += 2 + length
    return None


def find_orientation(image: Image.Image) -> Orientation:
    """The orientation in EXIF data or, if they have none, in XMP; upright if they are damaged."""
    value = 0
    with contextlib.suppress(SyntaxError, ValueError, struct.error):
        value = image.getexif().get(ORIENTATION_TAG, 0)
    return EXIF_ORIENTATIONS.get(value, UPRIGHT)


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
