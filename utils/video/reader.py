"""Base classes of all readers of frames, their errors and libraries, checks of untrusted files, and
the orientation of pictures.
"""

import abc
import contextlib
import functools
import importlib
import itertools
import math
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Protocol, Union

import numpy as np

from utils.messages import escape_control

MAX_FILE_BYTES = 2**28  # of a video whose packets are kept in memory, and of an image file
MAX_PIXELS = 4096 * 4096  # of a frame, unless data.max_pixels is set
PART_BYTES = 2**26  # of frames that are in memory at full size
SHORT_SIDE = 256  # pixels
DEFAULT_FPS = 30.0  # of a video without a frame rate
HALF_MILLISECOND = 0.0005  # Matroska rounds time stamps to milliseconds
EMPTY_SEGMENT = "no frame from {:.9g} to {:.9g} seconds"


class VideoError(ValueError):
    """A video that cannot be read. `args` are its path, the reader (back end) and the reason."""

    def __init__(self, path: object, reader: str, reason: object):
        # All three are arguments of ValueError, so that processes can pickle the error.
        super().__init__(str(path), reader, " ".join(str(reason).split()))

    def __str__(self) -> str:
        path, reader, reason = self.args
        return escape_control(f"cannot read {path} with {reader}: {reason}")


@contextlib.contextmanager
def reading(path: object, reader: str) -> Iterator[None]:
    """Turns every exception that a library raises for a damaged file into a VideoError.

    The libraries raise errors of many classes, some of which are documented nowhere.
    """
    try:
        yield
    except VideoError:
        raise
    except Exception as error:
        name = "" if type(error) is ValueError else f"{type(error).__name__}: "
        (reason, *_) = str(error).splitlines() or [""]  # decord adds its stack
        raise VideoError(path, reader, name + reason) from None


@contextlib.contextmanager
def plain_path(path: Path) -> Iterator[str]:
    """An absolute path for libraries, in UTF-8; never an address such as `http:x.mp4`.

    A name that is not UTF-8 is replaced by the number of the open file: libraries refuse such a
    name.
    """
    plain = os.path.abspath(path)
    try:
        plain.encode()
    except UnicodeEncodeError:
        with open(path, "rb") as file:
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        yield plain


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raises ValueError if a frame has more than `max_pixels` pixels.

    A frame with a short side below 256 counts as one enlarged to 256, as test views enlarge it.
    """
    short = min(width, height)
    factor = max(SHORT_SIDE / short, 1) if short > 0 else 1
    if width * height * factor**2 > max_pixels:
        size = f"{width}x{height} (its short side counts as at least {SHORT_SIDE})"
        raise ValueError(f"a frame of {size} has more than data.max_pixels={max_pixels} pixels")


def read_bytes(path: Union[str, Path]) -> bytes:
    """The bytes of an image file. OSError if it is not a file or larger than MAX_FILE_BYTES."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO does not block
    with open(handle, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a file")
        if status.st_size > MAX_FILE_BYTES:
            raise OSError(f"{status.st_size} bytes are too many for an image")
        return file.read()


class Segment(NamedTuple):
    """A part of a video: the frames with `start` <= t < `end`, in seconds from its first frame.

    Times are compared to the millisecond, so that 0.0333 is the second frame at 30 per second.
    """

    start: float
    end: float

    def find_frames(self, fps: float) -> range:
        """The numbers of its frames at a constant rate, whether the video has them or not."""
        first, end = (math.ceil((time - HALF_MILLISECOND) * fps) for time in self)
        return range(max(first, 0), end)

    def __str__(self) -> str:
        return f"{self.start:.15g} {self.end:.15g}"


class Timeline(Protocol):
    """The times of the frames of a video, or of a part of it."""

    fps: float  # frames per second, of a variable rate their mean; 0 if unknown
    # Of a variable rate, the seconds (n + 1,) from the first frame to each, and to the end. None:
    # frame k is shown at k / fps.
    times: Optional[np.ndarray]

    def __len__(self) -> int: ...


def find_time(timeline: Timeline, frame: Any) -> Any:
    """Seconds from the first frame to a frame, or to frames of an array; its length is the end."""
    if timeline.times is None:
        return frame / (timeline.fps or DEFAULT_FPS)
    return timeline.times[frame]


def find_frames(times: np.ndarray, start: float, end: float) -> range:
    """The frames with `start` <= t < `end` of the `times` of a variable rate."""
    limits = np.array([start, end]) - HALF_MILLISECOND
    return range(*np.searchsorted(times[:-1], limits).tolist())


def measure_times(
    stamps: np.ndarray, fps: float, last: float = 0.0
) -> tuple[float, Optional[np.ndarray]]:
    """(`fps`, `times`) of a `Timeline`, by the seconds at which its frames are shown.

    `fps` is the rate that the file states, `last` the seconds for which the last frame is shown, if
    they are known. The rate is constant if each frame is shown within half a frame of its place, at
    the stated rate or else at the mean one.
    """
    times = stamps - stamps[:1]
    if len(times) < 2 or times[-1] <= 0 or (np.diff(times) < 0).any():
        return fps, None
    for rate in (fps, (len(times) - 1) / times[-1]):
        if rate and np.abs(times * rate - np.arange(len(times))).max() <= 0.5:
            return float(rate), None
    end = times[-1] + (last or times[-1] / (len(times) - 1))
    return len(times) / end, np.append(times, end)


class FrameReader(contextlib.AbstractContextManager["FrameReader"]):
    """Frames of one video, numbered in presentation order; a context manager that closes it."""

    def __init__(self, path: Path, reader: str):
        self.path = path
        self.reader = reader
        self._handle: Any = None  # the decoder; close() releases it with its file and memory
        self._length = 0
        self.fps = 0.0  # as in `Timeline`
        self.times: Optional[np.ndarray] = None  # as in `Timeline`
        self.stamps: Optional[np.ndarray] = None  # as `times`, also of a constant rate, if known
        self.damaged = 0  # frames read so far that the decoder marks as damaged; PyAV only
        self.requested = np.empty(0, np.int64)  # the frames that `read` or a `Clip` took last

    @abc.abstractmethod
    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        """Yields the frames of `indices`, which are ascending and unique."""

    def __len__(self) -> int:
        return self._length

    def close(self) -> None:
        self._handle = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def parts(self, numbers: np.ndarray) -> Iterator[np.ndarray]:
        """The frames of ascending, unique numbers as arrays uint8 (n, H, W, C), one after another.

        An array has at most PART_BYTES, or one frame. Raises VideoError for a number outside the
        video, a frame that cannot be decoded, or frames of different sizes; ValueError for none.
        """
        left = len(numbers)
        if not left:
            raise ValueError(f"no frames of {self.path} are requested")
        for index in (numbers[0], numbers[-1]):
            if not 0 <= index < len(self):
                raise self._error(f"frame {index} is not one of its {len(self)} frames")
        shape: tuple[int, ...] = ()
        part = np.empty(0)
        filled = 0
        for number, frame in zip(numbers, self._decode(numbers.tolist())):
            shape = shape or frame.shape
            if frame.shape != shape:
                raise self._error(f"frame {number} is {frame.shape}, others {shape}")
            if not filled:
                part = np.empty((min(left, max(PART_BYTES // frame.nbytes, 1)), *shape), np.uint8)
            part[filled] = frame
            filled += 1
            if filled == len(part):
                yield part
                left -= filled
                filled = 0

    def read(
        self, numbers: Any, prepare: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """(results of `prepare` for the unique frames, index): `results[index]` are for `numbers`.

        `prepare` maps frames (n, H, W, C) to an array (n, ...). It gets few frames at once, so the
        memory for large frames is small. Raises what `parts` does.
        """
        clip = Clip(self, numbers)
        return clip.prepare(prepare), clip.index

    def frames(self, indices: Iterable[int]) -> np.ndarray:
        """The frames uint8 (len(indices), H, W, C), in the order of `indices`; as `read`."""
        return Clip(self, indices).transform(np.asarray)

    def in_order(self) -> Iterator[np.ndarray]:
        """All frames (H, W, C), one after the other. Raises VideoError."""
        return self._decode(list(range(len(self))))

    def _error(self, reason: object) -> VideoError:
        return VideoError(self.path, self.reader, reason)


class Clip:
    """The frames of a clip, which are decoded while they are transformed, once.

    `shape` is (T, H, W, C). Raises what `FrameReader.parts` does.
    """

    def __init__(self, video: FrameReader, numbers: Any):
        video.requested = np.array([*numbers], np.int64)
        unique, index = np.unique(video.requested, return_inverse=True)
        self.index = index.reshape(video.requested.shape)  # of a frame among the unique ones
        self._parts = video.parts(unique)
        self._first = next(self._parts)
        self.shape = (len(self.index), *self._first.shape[1:])

    def prepare(self, transform: Callable[[np.ndarray], np.ndarray], axis: int = 0) -> np.ndarray:
        """`transform` of the unique frames; it gets some of them, `axis` counts them in its result.

        So the memory for large frames is small.
        """
        parts = itertools.chain([self._first], self._parts)
        del self._first
        results = list(map(transform, parts))
        return results[0] if len(results) == 1 else np.concatenate(results, axis)

    def transform(self, transform: Callable[[np.ndarray], np.ndarray], axis: int = 0) -> np.ndarray:
        """`transform` of all frames, as `prepare`."""
        result = self.prepare(transform, axis)
        is_in_order = len(self.index) == result.shape[axis] and (np.diff(self.index) > 0).all()
        return result if is_in_order else result.take(self.index, axis)


def transform_frames(
    frames: Union[np.ndarray, Clip], transform: Callable[[np.ndarray], np.ndarray], axis: int = 0
) -> np.ndarray:
    """`Clip.transform`, also of frames (T, H, W, C) in memory."""
    return frames.transform(transform, axis) if isinstance(frames, Clip) else transform(frames)


class SegmentReader(FrameReader):
    """The frames of a segment of a video, by the times of its frames.

    Raises VideoError if the video has no frame in the segment, or no frame rate.
    """

    def __init__(self, video: FrameReader, segment: Segment):
        super().__init__(video.path, video.reader)
        self._handle = video
        self.fps = video.fps
        if not self.fps:
            raise self._error("it has no frame rate, so its segments are unknown")
        if video.stamps is None:
            frames = segment.find_frames(self.fps)
            self._numbers = frames[: max(len(video) - frames.start, 0)]
        else:
            self._numbers = find_frames(video.stamps, *segment)
        self._length = len(self._numbers)
        if not self._numbers:
            raise self._error(EMPTY_SEGMENT.format(*segment))
        if video.stamps is not None:
            part = video.stamps[self._numbers.start : self._numbers.stop + 1]
            last = float(part[-1] - part[-2])
            self.fps, self.times = measure_times(part[:-1], self.fps, last)

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        for pixels in self._handle._decode([self._numbers[index] for index in indices]):
            self.damaged = self._handle.damaged
            yield pixels

    def close(self) -> None:
        self._handle.close()


MODULES = {"pyav": "av", "decord": "decord", "opencv": "cv2"}


@functools.cache
def load_library(reader: str) -> Any:
    """The library of a reader, which prints nothing from now on; ImportError if there is none."""
    library = importlib.import_module(MODULES[reader])
    if reader == "pyav":
        library.logging.set_level(library.logging.PANIC)
    elif reader == "decord":
        library.logging.set_level(library.logging.QUIET)
    else:
        # OpenCV 4.11 and 4.14 have it at different places.
        logging = library if "setLogLevel" in vars(library) else library.utils.logging
        logging.setLogLevel(0)
        library.setNumThreads(0)  # many workers decode at once, each on one core
    return library


class Orientation(NamedTuple):
    """How a file says that its pictures are turned: display matrices of videos, EXIF of images."""

    mirrored: bool = False
    turns: int = 0  # quarters, clockwise, after mirroring

    def apply(self, pixels: np.ndarray) -> np.ndarray:
        """A view of the pixels (H, W, ...) as they are shown."""
        pixels = pixels[:, ::-1] if self.mirrored else pixels
        return np.rot90(pixels, -self.turns) if self.turns else pixels


UPRIGHT = Orientation()
# By the value of EXIF's tag 0x0112, from 1 on; any other value is upright.
EXIF_ORIENTATIONS = {
    value: Orientation(value in (2, 4, 5, 7), turns)
    for value, turns in enumerate((0, 0, 2, 2, 3, 1, 1, 3), start=1)
}


def read_display_matrix(data: bytes) -> Orientation:
    """The orientation nearest to a display matrix, FFmpeg's nine 32-bit numbers.

    The matrix (a, b; c, d) takes x to (a, b) and y to (c, d), with y downwards. A turn is rounded
    to a quarter; a matrix that makes a line or a point of the picture is ignored.
    """
    a, b, _, c, d, *_ = struct.unpack("=9i", data)
    determinant = a * d - b * c
    if not determinant:
        return UPRIGHT
    sign = math.copysign(1, determinant)
    angle = math.atan2(sign * b - c, sign * a + d)
    return Orientation(sign < 0, round(angle / (math.pi / 2)) % 4)
