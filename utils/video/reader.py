"""What every reader of frames is: a source with a length, asked for frames by their numbers."""

import abc
import contextlib
import operator
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from utils.messages import escape_control

LARGEST = 2**28  # bytes: a video's packets are kept in memory up to this, an image's file read
# What a playlist begins with, also behind the tag of a song. decord and OpenCV would open the files
# that it names, and wait for those of a live one.
PLAYLISTS = (b"#EXTM3U", b"ffconcat", b"ID3")
MAX_PIXELS = 4096 * 4096  # of a frame, unless data.max_pixels says otherwise
SHORT_SIDE = 256  # pixels
NO_VIDEO = "it does not open: cut short, or not a video"


class VideoError(ValueError):
    """A video that cannot be read: which one, by which back end, and the reason it gave."""

    def __init__(self, path: object, reader: str, reason: object):
        # All three are handed up, so that the error survives pickling between processes.
        super().__init__(str(path), reader, " ".join(str(reason).split()))

    def __str__(self) -> str:
        path, reader, reason = self.args
        return escape_control(f"cannot read {path} with {reader}: {reason}")


class WrongContent(VideoError):
    """A file that is a picture, a text, or a playlist of other files."""


@contextlib.contextmanager
def reading(path: object, reader: str) -> Iterator[None]:
    """Turns all that a library raises for a damaged file into a VideoError.

    The libraries raise errors of many classes, some of which are documented nowhere.
    """
    try:
        yield
    except VideoError:
        raise
    except OSError as error:
        raise VideoError(path, reader, error.strerror or error) from None
    except Exception as error:
        name = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise VideoError(path, reader, f"{name}{error}") from None


def refuse_playlist(path: Union[str, Path], reader: str) -> None:
    """Raises WrongContent where a file is a list of other files, by its beginning."""
    with reading(path, reader), open(path, "rb") as file:
        if file.read(max(map(len, PLAYLISTS))).startswith(PLAYLISTS):
            raise WrongContent(path, reader, "its content is a playlist or a song")


@contextlib.contextmanager
def plain_path(path: Path) -> Iterator[str]:
    """An absolute path for libraries: no address of a protocol, as `http:x.mp4` is, and UTF-8.

    A name that is not UTF-8 is replaced by the number of the open file: at such a name OpenCV ends
    the process.
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
    """Raises ValueError where a frame has more than `max_pixels` pixels.

    A frame of a short side below 256 is counted as one enlarged to it, as the views of a test are.
    """
    short = min(width, height)
    factor = max(SHORT_SIDE / short, 1) if short > 0 else 1
    if width * height * factor**2 > max_pixels:
        enlarged = f", with its short side enlarged to {SHORT_SIDE}," if factor > 1 else ""
        raise ValueError(
            f"a frame of {width}x{height}{enlarged} has more than {max_pixels} pixels, the limit"
            " data.max_pixels"
        )


def read_bytes(path: Path) -> bytes:
    """The contents of an image file. OSError where it is no file, or above `LARGEST` bytes."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a FIFO does not block
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a file")
        if status.st_size > LARGEST:
            raise OSError(f"{status.st_size} bytes are too many for an image")
        return file.read()


class FrameSource(abc.ABC):
    """Frames that can be asked for by number. A context manager; leaving it frees the file."""

    def __init__(self, path: Path, reader: str):
        self.path, self.reader = path, reader
        self._handle: Any = None  # what close() frees: the decoder, with its file and its memory
        self._length = 0
        self.fps = 0.0  # frames per second; 0 where nobody says
        self.damaged = 0  # frames read so far that the decoder marks as damaged; PyAV only

    @abc.abstractmethod
    def _decode(self, wanted: list[int]) -> Iterator[np.ndarray]:
        """Yields the wanted frames, given in ascending order and each once."""

    def __len__(self) -> int:
        return self._length

    def close(self) -> None:
        self._handle = None

    def __enter__(self) -> "FrameSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def frames(self, indices: Iterable[int]) -> np.ndarray:
        """Reads frames in the order asked for; repeated ones are decoded once.

        Returns uint8 (len(indices), H, W, C). Raises VideoError for an index outside the video,
        a frame that cannot be decoded, or frames of different sizes; ValueError for no index.
        """
        numbers = np.array([operator.index(index) for index in indices], np.int64)
        if not numbers.size:
            raise ValueError(f"no frames of {self.path} were asked for")
        wanted, position = np.unique(numbers, return_inverse=True)
        for index in (wanted[0], wanted[-1]):
            if not 0 <= index < len(self):
                raise self._error(f"frame {index} was asked for, of {len(self)} counted from 0")
        out = None
        for k, frame in enumerate(self._decode(wanted.tolist())):
            if out is None:
                out = np.empty((numbers.size, *frame.shape), np.uint8)
            if frame.shape != out.shape[1:]:
                raise self._error(f"frame {wanted[k]} is {frame.shape}, others {out.shape[1:]}")
            out[position == k] = frame
        return out

    def frames_once(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The frames that an array names, each once, and, in its shape, which of them is where."""
        needed, positions = np.unique(numbers, return_inverse=True)
        return self.frames(needed), positions.reshape(numbers.shape)

    def in_order(self) -> Iterator[np.ndarray]:
        """All frames (H, W, C), one after the other. Raises VideoError."""
        return self._decode(list(range(len(self))))

    def _error(self, reason: object) -> VideoError:
        return VideoError(self.path, self.reader, reason)


class VideoFile(FrameSource):
    """A video decoded in order; asking for an earlier frame starts again from the beginning."""

    def __init__(self, path: Path, reader: str, max_pixels: int = MAX_PIXELS):
        super().__init__(path, reader)
        self._next = 0  # the frame that `_read` comes to
        self._max_pixels = max_pixels
        with reading(path, reader):
            self._length = self._open()

    @abc.abstractmethod
    def _open(self) -> int:
        """Puts a decoder that stands before frame 0 into `_handle`; returns the frame count."""

    @abc.abstractmethod
    def _read(self, keep: bool) -> Optional[np.ndarray]:
        """Decodes the next frame; returns its RGB pixels (H, W, 3) if they are to be kept."""

    def _decode(self, wanted: list[int]) -> Iterator[np.ndarray]:
        if self._handle is None:
            raise ValueError(f"{self.path} was closed")
        with reading(self.path, self.reader):
            if wanted[0] < self._next:
                self._open()
                self._next = 0
        for index in wanted:
            with reading(self.path, self.reader):
                while self._next <= index:
                    pixels = self._read(keep=self._next == index)
                    self._next += 1
            yield pixels
