"""Frames out of video files and frame folders, and their resizing. No MindSpore here.

A `FrameSource` has `len(source)` frames and gives `source.frames(indices)`: uint8, channels last,
RGB. Frames are counted from 0 in the order in which they are shown.

By decord and OpenCV files are decoded from the first frame on, never by seeking: decord's
`get_batch`, `seek_accurate` and `skip_frames` return other frames than asked for, without a word,
when groups of pictures are open (H.264, HEVC), in MPEG-4 and MPEG-1/2 with B-frames, in WMV, and in
H.264 in AVI. `utils.video.pyav_reader` says how PyAV decodes only what is needed.

The back ends return the same bytes, with these exceptions. Interlaced and 10-bit video has other
colours by each of them: their versions of FFmpeg differ, and OpenCV's garbles rows. decord loses
the start of MPEG transport streams. decord and OpenCV count frames that an edit list hides, and
refuse as many at the end. OpenCV 4.11 also takes BT.709 colours for BT.601 (39 levels apart at
most, on a drawn chart), is 2 levels off in a few pixels of MPEG-4, does not decode AV1 and gives up
where frames lie hours apart; such files FFmpeg 7 (PyAV 15, Python 3.9) misreads.
"""

import functools
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any, Optional, Union

import numpy as np
from PIL import Image

from utils.video.image_files import PIL_PIXELS, jpeg_size, read_picture
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
    refuse_playlist,
)

READERS = ("auto", "pyav", "decord", "opencv")
_DECORD_PREFIX = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")

Box = tuple[int, int, int, int]  # x, y, width, height in pixels


class _DecordVideo(VideoFile):
    def _open(self) -> int:
        if not self._length and _opencv() is not None:
            _capture_packets(self.path, self._max_pixels)  # decord decodes before it says the size
        try:
            # Where decord cannot decode a frame it repeats a neighbour; fault_tol makes it say so.
            with plain_path(self.path) as path:
                self._handle = _decord().VideoReader(path, num_threads=1, fault_tol=1e-9)
        except RuntimeError:
            raise self._error(NO_VIDEO) from None
        except Exception as error:  # decord's errors have no class in common
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
        # Where padding makes rows a third longer (144 wide), decord takes it for a fourth channel.
        return rows.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)


class _OpenCVVideo(VideoFile):
    def _open(self) -> int:
        packets = _capture_packets(self.path, self._max_pixels)
        if packets is None:
            raise self._error(NO_VIDEO)
        # The count is a guess in MPEG, Matroska and FLV; only a picture has none at all.
        count = packets.get(_opencv().CAP_PROP_FRAME_COUNT)
        length = sum(1 for _ in iter(packets.grab, False)) if count > 0 else 0
        if not length:
            raise self._error("it has no video frames")
        self._handle = _capture(self.path)
        self._handle.set(_opencv().CAP_PROP_ORIENTATION_AUTO, 1)  # turned upright, as by decord
        self.fps = float(self._handle.get(_opencv().CAP_PROP_FPS))
        return length

    def _read(self, keep: bool) -> Optional[np.ndarray]:
        result, pixels = self._handle.read() if keep else (self._handle.grab(), None)
        if not result:
            raise self._error(f"frame {self._next} of {len(self)} cannot be decoded")
        return pixels[:, :, ::-1] if keep else None


def _capture_packets(path: Path, max_pixels: int) -> Any:
    """An OpenCV capture that hands packets out undecoded; None where OpenCV opens no video.

    Raises ValueError where a frame has more than `max_pixels` pixels.
    """
    cv2 = _opencv()
    capture = _capture(path, cv2.CAP_PROP_FORMAT, -1)
    if not capture.isOpened():
        return None
    width, height = (capture.get(f) for f in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    check_size(int(width), int(height), max_pixels)
    return capture


def _capture(path: Path, *settings: int) -> Any:
    cv2 = _opencv()
    with plain_path(path) as plain:
        return cv2.VideoCapture(plain, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1, *settings])


class FrameFolder(FrameSource):
    """A folder of JPEG frames numbered from 1; index 0 is file 1. Pixels are those of PIL.

    `image_tmpl` names a frame. RGB: one field, the number. Flow, read as (n, H, W, 2) for x and y:
    two fields (x or y, number), three (the folder's name as an integer, x or y, number), or one
    (number) with x and y in the first two colour channels. Another template is a ValueError.
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
        self._length, self._template, self._max_pixels = num_frames, image_tmpl, max_pixels
        self._fields = sum(field == "" for _, field, _, _ in Formatter().parse(image_tmpl))
        if self._fields not in ((1, 2, 3) if flow else (1,)):
            raise ValueError(f"data.image_tmpl {image_tmpl!r} has {self._fields} fields {{}}")
        if self._fields == 3 and not self.path.name.isdecimal():
            raise self._error(f"data.image_tmpl {image_tmpl!r} needs a number as folder name")
        self._load = self._flow if flow else functools.partial(self._image, "RGB")

    def has(self, index: int) -> bool:
        """Whether there is a file for a frame; of flow, that of x."""
        folder = (int(self.path.name),) if self._fields == 3 else ()
        fields = (*folder, "x", index + 1) if self._fields > 1 else (index + 1,)
        return (self.path / self._template.format(*fields)).is_file()

    def _decode(self, wanted: list[int]) -> Iterator[np.ndarray]:
        return (self._load(index + 1) for index in wanted)

    def _flow(self, number: int) -> np.ndarray:
        if self._fields == 1:
            return self._image("RGB", number)[:, :, :2]
        folder = (int(self.path.name),) if self._fields == 3 else ()
        x, y = (self._image("L", *folder, axis, number) for axis in "xy")
        if x.shape != y.shape:
            raise self._error(f"flow frame {number}: x is {x.shape}, y {y.shape}")
        return np.stack((x, y), axis=2)

    def _image(self, mode: str, *fields: object) -> np.ndarray:
        path = self.path / self._template.format(*fields)
        with reading(path, self.reader):
            data = read_bytes(path)
            pixels = read_jpeg(data, mode, self._max_pixels)
            return read_picture(data, mode, self._max_pixels) if pixels is None else pixels


def count_frames(folder: Path, image_tmpl: str, flow: bool = False) -> int:
    """How many frames a `FrameFolder` has: files numbered from 1 without a gap.

    VideoError where there is none.
    """
    source = FrameFolder(folder, 0, image_tmpl, flow)
    count = next(k for k in itertools.count() if not source.has(k))
    if not count:
        raise VideoError(folder, source.reader, f"it has no frame named {image_tmpl}")
    return count


def read_jpeg(data: bytes, mode: str, max_pixels: int = PIL_PIXELS) -> Optional[np.ndarray]:
    """Pixels (H, W, 3), or grey (H, W), as PIL reads them and 1.3 times as fast.

    None where PIL must be asked: for what is no JPEG file, is broken, or is grey by conversion.
    Raises ValueError for more than `max_pixels` pixels.
    """
    cv2, size = _opencv(), jpeg_size(data)
    if size is None or cv2 is None:
        return None
    check_size(*size, max_pixels)
    flags = cv2.IMREAD_COLOR_RGB if mode == "RGB" else cv2.IMREAD_UNCHANGED
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION)
    return pixels if pixels is None or mode == "RGB" or pixels.ndim == 2 else None


def open_video(
    path: Union[str, Path], reader: str = "auto", max_pixels: int = MAX_PIXELS
) -> FrameSource:
    """Opens a video with "pyav", "decord", "opencv", or "auto": the first that is installed.

    VideoError: the file is missing, empty, no video in one file, or has frames of more than
    `max_pixels` pixels. ValueError: no such reader here.
    """
    if reader not in READERS:
        raise ValueError(f"data.reader is {reader!r}; choose one of {', '.join(READERS)}")
    if reader == "auto":
        reader = next((name for name in READERS[1:] if _LIBRARIES[name]() is not None), "opencv")
    if _LIBRARIES[reader]() is None:
        package = {"pyav": "av", "decord": "decord2"}.get(reader, "opencv-python-headless")
        raise ValueError(
            f"data.reader is {reader!r}, which is not installed: pip install {package}, "
            "or --data.reader=auto"
        )
    if not os.path.isfile(path) or not os.path.getsize(path):
        raise VideoError(path, reader, "no such file, or an empty one")
    refuse_playlist(path, reader)
    _opencv()  # also where it only resizes and draws: one thread each
    if reader == "pyav":
        from utils.video.pyav_reader import ExactVideo  # which needs the library

        return ExactVideo(Path(path), max_pixels)
    return (_DecordVideo if reader == "decord" else _OpenCVVideo)(Path(path), reader, max_pixels)


def resize(frames: np.ndarray, width: int, height: int, box: Optional[Box] = None) -> np.ndarray:
    """Resizes as PIL's crop and bilinear resize do, which average when shrinking.

    Takes uint8 (n, H, W, 3 or 2) and a box to cut out first; a box that is empty or leaves the
    frame is a ValueError. Without a change of size the result is a view of `frames`.
    """
    if box is not None:
        frames = _crop(frames, box)
    if frames.shape[1:3] == (height, width):
        return frames
    out = np.empty((len(frames), height, width, frames.shape[3]), np.uint8)
    # Two channels PIL would take for grey and alpha, and weight one by the other.
    parts = (slice(None),) if frames.shape[3] == 3 else range(frames.shape[3])
    for frame, target in zip(frames, out):
        for part in parts:
            image = Image.fromarray(np.ascontiguousarray(frame[:, :, part]))
            target[:, :, part] = image.resize((width, height), Image.Resampling.BILINEAR)
    return out


def short_side_size(width: int, height: int, side: int) -> tuple[int, int]:
    """The (width, height) at which the short side is `side` and the long one is rounded down."""
    short = min(width, height)
    return side * width // short, side * height // short


def center_crop_box(width: int, height: int, size: int) -> Box:
    """The square in the middle; half a pixel goes to the even corner. ValueError if too large."""
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
def _decord() -> Any:
    try:
        import decord
    except (ImportError, OSError):  # OSError: its library does not load
        return None
    decord.logging.set_level(decord.logging.QUIET)
    return decord


@functools.cache
def _opencv() -> Any:
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # quiet; read at the first opening
    try:
        import cv2
    except (ImportError, OSError):
        return None
    # The function's name in OpenCV 4.11, and in 4.14.
    (getattr(cv2, "setLogLevel", None) or cv2.utils.logging.setLogLevel)(0)
    cv2.setNumThreads(0)  # many workers decode at once; each stays on its core
    return cv2


@functools.cache
def _pyav() -> object:
    try:
        import av
    except (ImportError, OSError):
        return None
    av.logging.set_level(av.logging.PANIC)
    return av


# Called by name, so that a test can take one away.
_LIBRARIES = {
    "pyav": lambda: _pyav(),
    "decord": lambda: _decord(),
    "opencv": lambda: _opencv(),
}
