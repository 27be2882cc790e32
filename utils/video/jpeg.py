"""Image files as pixels: JPEG by OpenCV, which is faster, all others by PIL.

The size in the header is checked before an image is decoded.
"""

import io
from typing import Optional

import numpy as np
from PIL import Image

from utils.video.libraries import load_library
from utils.video.reader import check_size

PIL_PIXELS = 178_956_970  # PIL refuses larger images
# JPEG markers of segments with the image size, and markers without a length.
SIZE_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
MARKERS_WITHOUT_LENGTH = {0x00, 0x01, *range(0xD0, 0xDA), 0xFF}


def read_jpeg(data: bytes, mode: str, max_pixels: int = PIL_PIXELS) -> Optional[np.ndarray]:
    """Pixels (H, W, 3), or grey (H, W), equal to PIL's and 1.3 times as fast.

    None if PIL must read it: not a JPEG file, broken, or a colour image for mode "L". Raises
    ValueError for more than `max_pixels` pixels.
    """
    cv2 = load_library("opencv")
    size = jpeg_size(data)
    if size is None or cv2 is None:
        return None
    check_size(*size, max_pixels)
    flags = cv2.IMREAD_COLOR_RGB if mode == "RGB" else cv2.IMREAD_UNCHANGED
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION)
    return pixels if pixels is None or mode == "RGB" or pixels.ndim == 2 else None


def jpeg_size(data: bytes) -> Optional[tuple[int, int]]:
    """Width and height of a JPEG file, as its decoder reads them; None if PIL must read it.

    An image of a few bytes may declare thousands of millions of pixels, so the size is checked
    before decoding. This takes a fifth of the time that PIL takes.
    """
    position = 2
    end = len(data) - 9
    while data[:2] == b"\xff\xd8" and position <= end and data[position] == 0xFF:
        marker = data[position + 1]
        if marker in SIZE_MARKERS:
            height = data[position + 5 : position + 7]
            width = data[position + 7 : position + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        if marker in MARKERS_WITHOUT_LENGTH:
            return None
        position += 2 + max(int.from_bytes(data[position + 2 : position + 4], "big"), 2)
    return None


def read_image(data: bytes, mode: str, max_pixels: int = PIL_PIXELS) -> np.ndarray:
    """Pixels of an image file by PIL: uint8 (H, W, 3) for mode RGB, (H, W) for L.

    Raises ValueError for more than `max_pixels` pixels, and errors of many classes for a damaged
    image.
    """
    with Image.open(io.BytesIO(data)) as image:
        check_size(*image.size, max_pixels)
        return np.asarray(image.convert(mode))
