"""Sources of frames for streams: files, cameras and addresses such as `rtsp://`. No MindSpore here.

A live source sends frames whether they are read or not. `LatestItems` reads it in a thread and
drops what nobody takes in time. A source that breaks off is opened again.
"""

import contextlib
import errno
import re
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Callable, Generic, NamedTuple, Optional, TypeVar
from urllib.parse import urlsplit

import numpy as np

from utils.messages import hide_secrets
from utils.video.reader import (
    DEFAULT_FPS,
    MAX_PIXELS,
    FrameReader,
    VideoError,
    find_time,
    load_library,
)

RATES = (1.0, 240.0)  # a live source that says another rate does not know it
STALL = 10.0  # seconds without data after which a source is broken
RETRY = 30.0  # seconds after which a broken source is not opened again
DELAY = 1.0  # seconds before a source is opened again
ENDED = "it ended"
NO_RANGES = (
    "its first frame cannot be read: the index of an MP4 is at its end, and its server sends no "
    "parts (ranges) of a file; download it, or put the index first: ffmpeg -movflags faststart"
)
END_TOLERANCE = 1.0  # seconds: a file at an address may end so long before its stated duration
SCHEMES = ("http", "https", "rtmp", "rtsp", "rtsps", "udp")
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
PROTOCOLS = "http,https,httpproxy,tcp,tls,udp,rtp,rtmp,rtsp,crypto"  # not `file`: playlists
PLAYLISTS = ("hls", "rtp", "rtsp", "sdp")  # formats whose size is not that of the video
UNTIMED = {"h264", "hevc", "mjpeg", "mpjpeg"}  # formats without time stamps

Item = TypeVar("Item")


class Frame(NamedTuple):
    """A frame (H, W, C). `number` is its position at the rate of the source, from 0, ascending.

    In a file it is the number of the frame; `position` is the other if the rate is variable.
    `restarts` is true for the first frame, and for the first one after an interruption.
    """

    number: int
    seconds: float
    pixels: np.ndarray
    restarts: bool
    position: Optional[float] = None


class Connection(NamedTuple):
    """An open source. `length` is the number of frames, 0 if unknown; of a file `fps` may be 0.

    `times` of the file, as in `Timeline`.

    `frames` yields (seconds, RGB frame). It ends if the source has a known duration, and else
    raises VideoError.
    """

    fps: float
    is_live: bool
    frames: Generator[tuple[float, np.ndarray], None, None]
    length: int = 0
    times: Optional[np.ndarray] = None


@dataclass(eq=False)
class StreamSource:
    """The frames of a file, a camera or an address in order; `name` is for names of files.

    `connect` opens it, again if it breaks off, for which `report` gets a line. If no frame has
    come `retry` seconds later, `frames` raises the VideoError of the interruption. The first
    opening is not repeated: a wrong address fails at once.
    """

    name: str
    connect: Callable[[], Connection]
    retry: float = RETRY
    report: Callable[[str], None] = lambda line: None  # noqa: E731

    def __post_init__(self) -> None:
        self.reopened = 0
        self.stopped = threading.Event()  # ends `frames` soon, from any thread
        self.connection = self.connect()
        rate, self.is_live, _, self.length, self.times = self.connection
        is_known = RATES[0] <= rate <= RATES[1] or self.length
        self.fps = rate if is_known else DEFAULT_FPS

    def __len__(self) -> int:
        return self.length

    def frames(self) -> Generator[Frame, None, None]:
        """All frames, one after the other. Raises VideoError."""
        fps = self.fps or DEFAULT_FPS
        number = -1
        last = -1.0
        start = time.monotonic()
        offset = 0.0  # seconds from the start to this connection
        connection: Optional[Connection] = self.connection
        failure: Optional[VideoError] = None  # the interruption that no frame has ended
        deadline = 0.0
        while not self.stopped.is_set():
            restarts = self.is_live or number < 0
            try:
                if connection is None:
                    connection = self.connect()
                    offset = time.monotonic() - start if self.is_live else 0.0
                with contextlib.closing(connection.frames):
                    for seconds, pixels in connection.frames:
                        if self.stopped.is_set():
                            return
                        if failure and not self.is_live and seconds <= last:
                            continue  # a file at an address starts again at its beginning
                        position = 0 if self.length else round((seconds + offset) * fps)
                        if self.is_live and number - position > fps:
                            continue  # a second ahead: its rate is above the stated one
                        self.reopened += failure is not None
                        failure = None
                        last = seconds
                        number = max(number + 1, position)
                        place = None if self.times is None else seconds * fps
                        yield Frame(number, seconds + offset, pixels, restarts, place)
                        restarts = False
                return
            except VideoError as error:
                connection = None
                if failure is None:
                    failure = error
                    deadline = time.monotonic() + self.retry
                    if self.retry:
                        self.report(f"{error}; it is opened again for up to {self.retry:g} s")
            if time.monotonic() + DELAY > deadline:
                raise failure
            self.stopped.wait(DELAY)


def open_file(reader: FrameReader) -> Connection:
    """The frames of a video file or a folder."""
    frames = ((float(find_time(reader, k)), pixels) for k, pixels in enumerate(reader.in_order()))
    return Connection(reader.fps, False, frames, length=len(reader), times=reader.times)


def open_camera(number: int) -> Connection:
    """A camera by OpenCV. Raises VideoError if it cannot be opened.

    Closing the iterator of frames releases it.
    """
    cv2 = load_library("opencv")
    name = f"camera {number}"
    capture = cv2.VideoCapture(number)
    if not capture.isOpened():
        raise VideoError(name, "opencv", "it cannot be opened: none is there, or it is in use")

    def read_frames() -> Generator[tuple[float, np.ndarray], None, None]:
        start = time.monotonic()
        try:
            while (pixels := capture.read()[1]) is not None:
                yield time.monotonic() - start, cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
        finally:
            capture.release()
        raise VideoError(name, "opencv", "it sends no more frames")

    return Connection(float(capture.get(cv2.CAP_PROP_FPS)), True, read_frames())


def open_address(
    address: str, max_pixels: int = MAX_PIXELS, stall: float = STALL, portable: bool = False
) -> Connection:
    """An address by PyAV. Raises VideoError if no video comes from it within `stall` seconds.

    A source of known duration or size is a file at an address: it is not live. `portable` as in
    `FrameConverter`.

    OpenCV's VideoCapture (4.11) gives no reason why an address does not open, ends alike at the end
    and at an interruption, writes FFmpeg's lines to stderr, and takes the protocols that are
    allowed from a variable of the environment only.
    """
    av = load_library("pyav")
    from utils.video import pyav_reader

    shown = hide_secrets(address)
    options = {
        "format_whitelist": f"{pyav_reader.FORMATS},hls,mpjpeg,rtp,rtsp,sdp",
        "protocol_whitelist": PROTOCOLS,
        "rtsp_flags": "prefer_tcp",
    }
    try:
        container = av.open(
            address,
            options={"max_pixels": str(max_pixels)},
            container_options=options,
            timeout=(stall, stall),
            **pyav_reader.METADATA,
        )
        stream = pyav_reader.open_stream(container, max_pixels)
    except av.error.ExitError:
        raise VideoError(shown, "pyav", f"no data came for {stall:g} s") from None
    except av.error.FFmpegError as error:
        raise VideoError(shown, "pyav", f"it sends no video: {error.strerror}") from None
    except ValueError as error:
        raise VideoError(shown, "pyav", error) from None
    is_file = container.size > 0 and container.format.name not in PLAYLISTS
    is_live = not (is_file or stream.duration or container.duration)
    converter = pyav_reader.FrameConverter(portable)
    frames = read_address(container, stream, converter, shown=shown, is_live=is_live, stall=stall)
    return Connection(float(stream.average_rate or 0), is_live, frames)


def read_address(
    container, stream, converter, shown: str, is_live: bool, stall: float
) -> Generator[tuple[float, np.ndarray], None, None]:
    """(seconds, RGB frame) of an open address; closes it at the end.

    Returns if a file is complete. Else, and if no frame came for `stall` seconds, raises
    VideoError.
    """
    from av.error import ExitError, FFmpegError, InvalidDataError

    from utils.video.packets import DTS_FORMATS, demux_to_end, is_jump, measure_missing

    formats = set(container.format.name.split(","))
    has_stamps = not (is_live and UNTIMED & formats)
    has_dts = bool(formats & DTS_FORMATS)
    has_duration = bool(stream.duration or container.duration)
    step = 1 / float(stream.average_rate or DEFAULT_FPS)
    start = time.monotonic()
    last_time = start  # of a picture
    last_stamp: Optional[float] = None
    zero = 0.0  # the stamp at which the source would have started
    end = 0.0  # of the packets of all streams
    reason = ENDED
    try:
        for packet in demux_to_end(container):
            if packet is not None and packet.pts is not None:
                end = max(end, (packet.pts + (packet.duration or 0)) * float(packet.time_base))
            if packet is not None and packet.stream.index != stream.index:
                continue
            pictures = []
            with contextlib.suppress(InvalidDataError):  # damaged, or refers to an earlier packet
                pictures = stream.decode(packet)
            for picture in pictures:
                units = picture.dts if has_dts else picture.pts
                if has_stamps and units is not None:
                    stamp = units * float(stream.time_base)
                elif is_live or last_stamp is None:
                    stamp = time.monotonic() - start
                else:  # AVI and ASF lack the last ones
                    stamp = last_stamp + step
                if last_stamp is None:
                    zero = stamp
                elif is_jump(stamp - last_stamp, formats):
                    zero += stamp - last_stamp - step
                else:
                    step = stamp - last_stamp
                last_stamp = stamp
                converter.follow(picture)
                yield stamp - zero, np.ascontiguousarray(converter.to_pixels(picture))
                last_time = time.monotonic()
            if time.monotonic() - last_time > stall:
                reason = f"no picture came for {stall:g} s"
                break
    except ExitError:
        reason = f"no data came for {stall:g} s"
    except FFmpegError as error:
        reason = f"it sends no video: {error.strerror}" if last_stamp is None else "it broke off"
        if last_stamp is None and error.errno == errno.EIO and "mp4" in formats:
            reason = NO_RANGES
    finally:
        missing = measure_missing(container, end)
        container.close()
    is_cut = missing > END_TOLERANCE if has_duration else reason != ENDED
    if is_live or last_stamp is None or is_cut:
        raise VideoError(shown, "pyav", reason)


def is_address(source: str) -> bool:
    """Whether a source is an address. Raises ValueError for one of a protocol that is not read."""
    match = ADDRESS.match(source)
    if match and match[1].lower() not in SCHEMES:
        raise ValueError(f"{hide_secrets(source)}: not an address of {', '.join(SCHEMES)}")
    return match is not None


def name_address(address: str) -> str:
    """A name for files: host and path, other characters replaced by underscores."""
    parts = urlsplit(hide_secrets(address))
    return re.sub(r"\W+", "_", f"{parts.netloc}{parts.path}").strip("_") or "stream"


class LatestItems(Generic[Item]):
    """The items of an iterator that a thread reads; the oldest are dropped if too many wait.

    Iterating takes them in order, and then raises the error of the iterator, if any.
    """

    def __init__(self, items: Generator[Item, None, None], capacity: int):
        self.items = items
        self.dropped = 0
        self.waiting: deque[Item] = deque(maxlen=capacity)
        self.changed = threading.Condition()
        self.ended = False
        self.error: Optional[BaseException] = None
        threading.Thread(target=self._read, name="stream", daemon=True).start()

    def _read(self) -> None:
        try:
            with contextlib.closing(self.items):
                for item in self.items:
                    with self.changed:
                        if self.ended:
                            return
                        self.dropped += len(self.waiting) == self.waiting.maxlen
                        self.waiting.append(item)
                        self.changed.notify()
        except BaseException as error:  # raised again where the items are taken
            self.error = error
        finally:
            with self.changed:
                self.ended = True
                self.changed.notify()

    def __iter__(self) -> Iterator[Item]:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting or self.ended)
                if not self.waiting:
                    break
                item = self.waiting.popleft()
            yield item
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Ends the iteration; the thread ends with the next item. From any thread."""
        with self.changed:
            self.ended = True
            self.waiting.clear()
            self.changed.notify()
