"""Reads frames of video files, frame folders, image files and cameras. No MindSpore here.

A `FrameSource` has `len(source)` frames and `source.frames(indices)`: uint8, channels last, RGB.
Frames are numbered from 0 in presentation order.

decord and OpenCV decode files from the first frame on and never seek. decord's `get_batch`,
`seek_accurate` and `skip_frames` return wrong frames without an error for open groups of pictures
(H.264, HEVC), MPEG-4 and MPEG-1/2 with B-frames, WMV, and H.264 in AVI. `utils.video.pyav_reader`
explains how PyAV decodes only the frames that are needed.

All readers return the same bytes, with these exceptions. Interlaced and 10-bit video has other
colours in each of them: their versions of FFmpeg differ, and OpenCV garbles rows. decord loses the
start of MPEG transport streams. decord and OpenCV count frames that an edit list hides, and fail
for as many frames at the end. OpenCV 4.11 also takes BT.709 colours for BT.601 (at most 39 levels
apart, on a synthetic chart), is 2 levels off in a few pixels of MPEG-4, does not decode AV1 and
stops if frames are hours apart; FFmpeg 7 (PyAV 15, Python 3.9) misreads such files.
"""

import functools
import importlib
import io
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any, Optional, Union

import numpy as np
from PIL import Image

from utils.video.mp4_boxes import check_header
from utils.video.reader import (
    MAX_PIXELS,
    NO_VIDEO,
    FrameSource,
    VideoError,
    VideoFile,
    check_size,
    plain_path,
    read_bytes,
    reading,
)

MODULES = {"pyav": "av", "decord": "decord", "opencv": "cv2"}
READERS = ("auto", *MODULES)
PIL_PIXELS = 178_956_970  # PIL refuses larger images
# JPEG markers of segments with the image size, and markers without a length.
SIZE_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
MARKERS_WITHOUT_LENGTH = {0x00, 0x01, *range(0xD0, 0xDA), 0xFF}
_DECORD_PREFIX = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")

Box = tuple[int, int, int, int]  # x, y, width, height in pixels


class _DecordVideo(VideoFile):
    def _open(self) -> int:
        if not self._length and _load("opencv") is not None:
            _open_packets(self.path, self._max_pixels)  # checks the size before decord decodes
        try:
            # decord replaces a frame that it cannot decode by a neighbour; fault_tol makes it fail.
            with plain_path(self.path) as path:
                self._handle = _load("decord").VideoReader(path, num_threads=1, fault_tol=1e-9)
        except RuntimeError:
            raise self._error(NO_VIDEO) from None
        except Exception as error:  # decord's errors have no common class
            raise self._error(_decord_reason(error)) from None
        self.fps = float(self._handle.get_avg_fps())
        return len(self._handle)

    def _read(self, keep: bool) -> Optional[np.ndarray]:
        try:
            frame = self._handle.next()
        except Exception as error:
            raise self._error(f"frame {self._next}: {_decord_reason(error)}") from None
        if not keep:
            return None
        rows = frame.asnumpy()
        height, width = rows.shape[:2]
        # If padding makes rows a third longer (144 wide), decord takes it for a fourth channel.
        return rows.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)


class _OpenCVVideo(VideoFile):
    def _open(self) -> int:
        cv2 = _load("opencv")
        packets = _open_packets(self.path, self._max_pixels)
        if packets is None:
            raise self._error(NO_VIDEO)
        # The count is an estimate for MPEG, Matroska and FLV; only an image has none.
        count = packets.get(cv2.CAP_PROP_FRAME_COUNT)
        length = sum(1 for _ in iter(packets.grab, False)) if count > 0 else 0
        if not length:
            raise self._error("it has no video frames")
        self._handle = _open_capture(self.path)
        self._handle.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1)  # rotated upright, like decord
        self.fps = float(self._handle.get(cv2.CAP_PROP_FPS))
        return length

    def _read(self, keep: bool) -> Optional[np.ndarray]:
        result, pixels = self._handle.read() if keep else (self._handle.grab(), None)
        if not result:
            raise self._error(f"frame {self._next} of {len(self)} cannot be decoded")
        return pixels[:, :, ::-1] if keep else None


def _open_packets(path: Path, max_pixels: int) -> Any:
    """An OpenCV capture that returns packets undecoded; None if OpenCV cannot open the video.

    Raises ValueError if a frame has more than `max_pixels` pixels.
    """
    cv2 = _load("opencv")
    capture = _open_capture(path, cv2.CAP_PROP_FORMAT, -1)
    if not capture.isOpened():
        return None
    width, height = (capture.get(f) for f in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    check_size(int(width), int(height), max_pixels)
    return capture


def _open_capture(path: Path, *settings: int) -> Any:
    cv2 = _load("opencv")
    with plain_path(path) as plain:
        return cv2.VideoCapture(plain, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1, *settings])


class FrameFolder(FrameSource):
    """A folder of JPEG frames numbered from 1; index 0 is file 1. Pixels equal PIL's.

    `image_tmpl` is the template of file names. RGB: one field, the number. Optical flow, which is
    read as (n, H, W, 2) for x and y: two fields (x or y, number); three (the folder's name as an
    integer, x or y, number); or one (number) with x and y in the first two colour channels. Raises
    ValueError for another template.
    """

    def __init__(
        self,
        path: Union[str, Path],
        num_frames: int,
        image_tmpl: str,
        flow: bool = False,
        max_pixels: int = MAX_PIXELS,
    ):
        super().__init__(Path(path), "PIL")
        self._length = num_frames
        self._template = image_tmpl
        self._max_pixels = max_pixels
        self._fields = sum(field == "" for _, field, _, _ in Formatter().parse(image_tmpl))
        if self._fields not in ((1, 2, 3) if flow else (1,)):
            raise ValueError(f"data.image_tmpl {image_tmpl!r} has {self._fields} fields {{}}")
        if self._fields == 3 and not self.path.name.isdecimal():
            raise self._error(f"data.image_tmpl {image_tmpl!r} needs a number as folder name")
        self._folder = (int(self.path.name),) if self._fields == 3 else ()
        self._read = self._flow if flow else functools.partial(self._image, "RGB")

    def has_frame(self, index: int) -> bool:
        """Whether the file of a frame exists; for flow, the file of x."""
        fields = (*self._folder, "x", index + 1) if self._fields > 1 else (index + 1,)
        return (self.path / self._template.format(*fields)).is_file()

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        return (self._read(index + 1) for index in indices)

    def _flow(self, number: int) -> np.ndarray:
        if self._fields == 1:
            return self._image("RGB", number)[:, :, :2]
        x, y = (self._image("L", *self._folder, axis, number) for axis in "xy")
        if x.shape != y.shape:
            raise self._error(f"flow frame {number}: x is {x.shape}, y {y.shape}")
        return np.stack((x, y), axis=2)

    def _image(self, mode: str, *fields: object) -> np.ndarray:
        path = self.path / self._template.format(*fields)
        with reading(path, self.reader):
            data = read_bytes(path)
            pixels = read_jpeg(data, mode, self._max_pixels)
            return read_image(data, mode, self._max_pixels) if pixels is None else pixels


def count_frames(folder: Path, image_tmpl: str, flow: bool = False) -> int:
    """The number of frames of a folder, from 1 without a gap; VideoError if there is none."""
    source = FrameFolder(folder, 0, image_tmpl, flow)
    count = next(k for k in itertools.count() if not source.has_frame(k))
    if not count:
        raise VideoError(folder, source.reader, f"it has no frame named {image_tmpl}")
    return count


def read_jpeg(data: bytes, mode: str, max_pixels: int = PIL_PIXELS) -> Optional[np.ndarray]:
    """Pixels (H, W, 3), or grey (H, W), equal to PIL's and 1.3 times as fast.

    None if PIL must read it: not a JPEG file, broken, or a colour image for mode "L". Raises
    ValueError for more than `max_pixels` pixels.
    """
    cv2 = _load("opencv")
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


def open_camera(number: int) -> tuple[float, Iterator[np.ndarray]]:
    """(frames per second, RGB frames) of a camera by OpenCV; the rate is 0 if unknown.

    Raises ValueError if the camera cannot be opened. Closing the iterator releases it.
    """
    cv2 = _load("opencv")
    capture = cv2.VideoCapture(number)
    if not capture.isOpened():
        raise ValueError(f"camera {number} cannot be opened: none is there, or it is in use")

    def read_frames() -> Iterator[np.ndarray]:
        try:
            while (pixels := capture.read()[1]) is not None:
                yield pixels[:, :, ::-1]
        finally:
            capture.release()

    return float(capture.get(cv2.CAP_PROP_FPS)), read_frames()


def open_video(
    path: Union[str, Path], reader: str = "auto", max_pixels: int = MAX_PIXELS
) -> FrameSource:
    """Opens a video with "pyav", "decord", "opencv", or "auto": the first that is installed.

    Raises VideoError if the file is missing, empty, damaged, no video, a playlist, or has frames of
    more than `max_pixels` pixels; ValueError if the reader is unknown or not installed.
    """
    if reader not in READERS:
        raise ValueError(f"data.reader is {reader!r}; choose one of {', '.join(READERS)}")
    if reader == "auto":
        reader = next((name for name in MODULES if _load(name) is not None), "opencv")
    if _load(reader) is None:
        package = {"pyav": "av", "decord": "decord2"}.get(reader, "opencv-python-headless")
        raise ValueError(
            f"data.reader is {reader!r}, which is not installed: pip install {package}, "
            "or --data.reader=auto"
        )
    if not os.path.isfile(path) or not os.path.getsize(path):
        raise VideoError(path, reader, "no such file, or an empty one")
    check_header(path, reader)
    _load("opencv")  # limits OpenCV to one thread, also if it only resizes
    if reader == "pyav":
        from utils.video.pyav_reader import ExactVideo  # needs PyAV

        return ExactVideo(Path(path), max_pixels)
    return (_DecordVideo if reader == "decord" else _OpenCVVideo)(Path(path), reader, max_pixels)


def resize(frames: np.ndarray, width: int, height: int, box: Optional[Box] = None) -> np.ndarray:
    """Crops and resizes as PIL does: bilinear, with antialiasing when shrinking.

    Takes uint8 (n, H, W, 3 or 2) and a box to crop first. Raises ValueError if the box is empty or
    not inside the frame. If the size does not change, the result is a view of `frames`.
    """
    if box is not None:
        frames = _crop(frames, box)
    if frames.shape[1:3] == (height, width):
        return frames
    out = np.empty((len(frames), height, width, frames.shape[3]), np.uint8)
    # PIL would take two channels for grey and alpha, and multiply one by the other.
    parts = (slice(None),) if frames.shape[3] == 3 else range(frames.shape[3])
    for frame, target in zip(frames, out):
        for part in parts:
            image = Image.fromarray(np.ascontiguousarray(frame[:, :, part]))
            target[:, :, part] = image.resize((width, height), Image.Resampling.BILINEAR)
    return out


def short_side_size(width: int, height: int, side: int) -> tuple[int, int]:
    """(width, height) with the short side `side`; the long side is rounded down."""
    short = min(width, height)
    return side * width // short, side * height // short


def center_crop_box(width: int, height: int, size: int) -> Box:
    """The central square; half a pixel is rounded to even. ValueError if it is too large."""
    if size > min(width, height):
        raise ValueError(f"a crop of {size} does not fit into a frame of {width}x{height}")
    return round((width - size) / 2), round((height - size) / 2), size, size


def _crop(frames: np.ndarray, box: Box) -> np.ndarray:
    x, y, width, height = box
    rows, columns = frames.shape[1:3]
    inside = x >= 0 and y >= 0 and x + width <= columns and y + height <= rows
    if not inside or min(width, height) < 1:
        raise ValueError(f"box {box} is no part of a frame of {columns}x{rows}")
    return frames[:, y : y + height, x : x + width]


def _decord_reason(error: Exception) -> str:
    lines = _DECORD_PREFIX.sub("", str(error)).splitlines()
    return lines[0] if lines else type(error).__name__


@functools.cache
def _load(reader: str) -> Any:
    """The library of a reader, which prints nothing from now on; None if it is not installed."""
    try:
        library = importlib.import_module(MODULES[reader])
    except (ImportError, OSError):  # OSError: its shared library does not load
        return None
    if reader == "pyav":
        library.logging.set_level(library.logging.PANIC)
    elif reader == "decord":
        library.logging.set_level(library.logging.QUIET)
    else:
        os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # it is read at the first opening
        # OpenCV 4.11 and 4.14 have it at different places.
        logging = library if "setLogLevel" in vars(library) else library.utils.logging
        logging.setLogLevel(0)
        library.setNumThreads(0)  # many workers decode at once, each on one core
    return library
