"""Image files as pixels, JPEG by OpenCV, which is faster, others by PIL; folders of them; arrays.

The size in the header is checked before an image is decoded. Images are read as their files say:

* of an animation the first picture;
* 16 bits a channel become 8 by leaving out the lower eight, as PIL does for colours;
* numbers of 32 bits, whole or float, are refused: such files do not say which one is white;
* transparency is left out, and CMYK converted, both by PIL;
* the orientation in EXIF, or in XMP if EXIF has none, turns and mirrors the picture; PIL finds it.
"""

import contextlib
import functools
import io
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Optional, Union

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from utils.video.reader import (
    EXIF_ORIENTATIONS,
    MAX_PIXELS,
    UPRIGHT,
    FrameReader,
    Segment,
    SegmentReader,
    check_size,
    load_library,
    read_bytes,
    reading,
)

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


def open_image(data: bytes, mode: str = "RGB", max_pixels: int = PIL_PIXELS) -> np.ndarray:
    """Pixels of an image file: uint8 (H, W, 3) for mode RGB, grey (H, W) for L.

    OpenCV reads JPEG files 1.3 times as fast as PIL, with equal pixels; PIL reads those that are
    broken, CMYK, or in colour for mode L. Raises ValueError for more than `max_pixels` pixels, or
    numbers of 32 bits, and errors of many classes for a damaged image.
    """
    pixels = None
    head = read_jpeg_head(data)
    if head is not None:
        width, height, channels, has_metadata = head
        check_size(width, height, max_pixels)
        if channels == 1 or (channels <= 3 and mode == "RGB"):
            cv2 = load_library("opencv")
            flags = cv2.IMREAD_COLOR_RGB if mode == "RGB" else cv2.IMREAD_UNCHANGED
            flags |= cv2.IMREAD_IGNORE_ORIENTATION
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        if pixels is not None and not has_metadata:
            return pixels
    with Image.open(io.BytesIO(data)) as image:
        if pixels is None:
            check_size(*image.size, max_pixels)
            image.load()
            pixels = convert(image, mode)
        if image.format != "TIFF":  # which PIL turns by its own tags, and by XMP
            with contextlib.suppress(SyntaxError, ValueError, struct.error):  # damaged
                orientation = EXIF_ORIENTATIONS.get(image.getexif().get(ORIENTATION_TAG), UPRIGHT)
                pixels = orientation.apply(pixels)
        return np.ascontiguousarray(pixels)


def read_jpeg_head(data: bytes) -> Optional[tuple[int, int, int, bool]]:
    """(width, height, channels, whether it has EXIF or XMP) of a JPEG file; None for PIL's.

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
            return width, height, data[position + 9], has_metadata
        if marker in MARKERS_WITHOUT_LENGTH:
            return None
        has_metadata = has_metadata or marker == APP1
        position += 2 + max(int.from_bytes(data[position + 2 : position + 4], "big"), 2)
    return None


def convert(image: Image.Image, mode: str) -> np.ndarray:
    """The pixels of an image in memory; ValueError if its numbers have 32 bits."""
    is_deep = image.mode == "F" or (image.mode == "I" and image.format not in FORMATS_OF_16_BITS)
    # PIL leaves 12 bits, and black, as they are, and takes planes of 16 bits for 8.
    tags: dict = dict(image.tag_v2) if isinstance(image, TiffImageFile) else {}
    if tags.get(TIFF_PLANES) == 2 and image.mode[0] != "I":
        is_deep |= max(tags.get(TIFF_BITS, (8,))) > 8
    if is_deep:
        raise ValueError("its numbers have 32 bits, or planes of 16 bits; save it with 8 bits")
    if image.mode.startswith("I"):
        (bits,) = tags.get(TIFF_BITS, (16,))
        grey = (np.asarray(image) >> bits - 8).astype(np.uint8)
        if tags.get(TIFF_BLACK) == WHITE_IS_ZERO:
            grey = 255 - grey
        return grey if mode == "L" else np.repeat(grey[..., None], 3, axis=2)
    image.info.pop("transparency", None)  # PIL would warn of a palette's
    return np.asarray(image.convert(mode))


class FrameFolder(FrameReader):
    """A folder of images numbered without a gap. Pixels equal PIL's.

    Index 0 is the first number that exists: 0, else 1, else the lowest one. `num_frames` None
    counts them, and raises VideoError if there is none, or a gap in their numbers.

    `image_tmpl` is the template of file names. RGB: one field, the number. Optical flow, which is
    read as (n, H, W, 2) for x and y: two fields (x or y, number); three (the folder's name as an
    integer, x or y, number); or one (number) with x and y in the first two colour channels. Raises
    ValueError for another template.
    """

    def __init__(
        self,
        path: Union[str, Path],
        num_frames: Optional[int],
        image_tmpl: str,
        flow: bool = False,
        max_pixels: int = MAX_PIXELS,
        fps: float = 0.0,
    ):
        super().__init__(Path(path), "PIL")
        self.fps = fps
        self._template = image_tmpl
        self._max_pixels = max_pixels
        self._fields = image_tmpl.count("{")
        most = 3 if self.path.name.isdecimal() else 2  # of flow
        if not 1 <= self._fields <= (most if flow else 1):
            raise ValueError(f"data.image_tmpl {image_tmpl!r} has {self._fields} fields for {path}")
        self._flow = flow
        self._folder = (int(self.path.name),) if self._fields == 3 else ()
        self._fields_before = (*self._folder, "x") if self._fields > 1 else ()  # the number
        self._length = num_frames
        if num_frames is None:
            numbers = set(self.list_numbers())
            if not numbers:
                raise self._error(f"it has no frame named {self._template}")
            missing = set(range(min(numbers), max(numbers))) - numbers
            if missing:
                raise self._error(f"frame {min(missing)} is missing ({len(missing)} in all)")
            self._length = len(numbers)

    def cut(self, segment: Segment) -> SegmentReader:
        """The frames of a segment. Looks for their files only, up to the first that is missing."""
        frames = segment.find_frames(self.fps)
        first = self._first_number
        self._length = next((k for k in frames if not self._has_number(first + k)), frames.stop)
        return SegmentReader(self, segment)

    def _has_number(self, number: int) -> bool:
        """Whether the file of a frame exists; for flow, the file of x."""
        return (self.path / self._template.format(*self._fields_before, number)).is_file()

    @functools.cached_property
    def _first_number(self) -> int:
        """That of the first frame; 1 if there is none."""
        known = next((number for number in (0, 1) if self._has_number(number)), None)
        return min(self.list_numbers(), default=1) if known is None else known

    def list_numbers(self) -> Iterator[int]:
        """The numbers of all files, in any order."""
        before, _, rest = self._template.rpartition("{")
        after = rest.partition("}")[2]
        pattern = re.escape(before.format(*self._fields_before)) + r"(\d+)" + re.escape(after)
        depth = "/".join("*" for _ in Path(self._template).parts)
        for path in self.path.glob(depth):
            match = re.fullmatch(pattern, path.relative_to(self.path).as_posix())
            if match and self._has_number(int(match[1])):
                yield int(match[1])

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        for index in indices:
            number = self._first_number + index
            if self._fields > 1:
                x, y = (self._image("L", *self._folder, axis, number) for axis in "xy")
                if x.shape != y.shape:
                    raise self._error(f"flow frame {number}: x is {x.shape}, y {y.shape}")
                yield np.stack((x, y), axis=2)
            else:
                yield self._image("RGB", number)[:, :, : 2 if self._flow else 3]

    def _image(self, mode: str, *fields: object) -> np.ndarray:
        path = self.path / self._template.format(*fields)
        with reading(path, self.reader):
            return open_image(read_bytes(path), mode, self._max_pixels)


class ArrayFrames(FrameReader):
    """Frames uint8 (T, H, W, channels); an image also (H, W, channels). `fps` 0 is unknown.

    Raises ValueError for other arrays, and for a single frame that is not to be an image.
    """

    def __init__(
        self,
        frames: np.ndarray,
        fps: float = 0.0,
        channels: int = 3,
        is_image: bool = False,
        max_pixels: int = MAX_PIXELS,
    ):
        super().__init__(Path("the frames"), "NumPy")
        shape = frames.shape
        is_good = frames.dtype == np.uint8 and frames.size and frames.ndim in (3, 4)
        is_single = frames.ndim == 3 or shape[:1] == (1,)
        if not is_good or shape[-1] != channels or is_image != is_single:
            expected = "one image uint8 (" if is_image else "a video uint8 (T, "
            expected += f"H, W, {channels}), channels last"
            raise ValueError(f"the network takes {expected}, not {frames.dtype} {shape}")
        self.fps = float(fps)
        self._handle = frames[None] if frames.ndim == 3 else frames
        self._length = len(self._handle)
        check_size(frames.shape[-2], height=frames.shape[-3], max_pixels=max_pixels)

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        return (self._handle[index] for index in indices)
