"""Reads frames of video files. No MindSpore here.

A `FrameReader` has `len(video)` frames and `video.frames(indices)`: uint8, channels last, RGB.
Frames are numbered from 0 in presentation order. They are those that FFmpeg decodes of the stream
that FFmpeg chooses, turned and mirrored as the file says.

PyAV decodes only the frames that are needed (`utils.video.pyav_reader`). It is twice as fast as
decord, so `auto` takes it. decord decodes a file from the first frame on and never seeks. Its
`get_batch`, `seek_accurate` and `skip_frames` return wrong frames without an error for open groups
of pictures (H.264, HEVC), MPEG-4 and MPEG-1/2 with B-frames, WMV, and H.264 in AVI.

decord also misreads files in which packets are not frames, whose parameter sets change, which have
a display matrix or several video streams, and MPEG transport streams; in HEVC it fails now and
then. PyAV reads such files, and those that decord cannot open, as Matroska files of a variable rate
that start late, whatever the reader is. For all other files both readers return the same bytes,
with one exception: interlaced and 10-bit video has other colours, because their versions of FFmpeg
differ.
"""

import contextlib
import os
import string
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Optional, Union

import numpy as np

from utils.video.reader import (
    MAX_PIXELS,
    FrameReader,
    Segment,
    SegmentReader,
    VideoError,
    load_library,
    plain_path,
    reading,
)

PARENTS = {"moov", "trak", "edts", "mdia", "minf", "stbl", "moof", "traf"}
COUNT_OFFSETS = {"stsz": 8, "stz2": 8, "elst": 4, "trun": 4}  # of the number of entries in a box
ENTRIES_PER_BYTE = 2  # a sample has at least a byte of data; edits may repeat some samples
MIN_LIMIT = 2**16  # entries that any file may declare
CHARACTERS = set(string.ascii_letters + string.digits + " ")


class DecordVideo(FrameReader):
    """Frames of a video file by decord, in order; `index` is the same file, opened by PyAV."""

    def __init__(self, index: FrameReader):
        super().__init__(index.path, "decord")
        self._length = len(index)
        self.fps = index.fps
        self.times = index.times
        self.stamps = index.stamps
        self._open()

    def _open(self) -> None:
        """Opens the file; `_next` is the frame that the decoder gives next."""
        decord = load_library("decord")
        self._next = 0
        with reading(self.path, self.reader), plain_path(self.path) as path:
            # decord replaces a frame that it cannot decode by a neighbour; fault_tol makes it fail.
            self._handle = decord.VideoReader(path, num_threads=1, fault_tol=1e-9)

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        if indices[0] < self._next:
            self._open()
        for index in indices:
            with reading(self.path, f"decord, frame {index}"):
                while self._next <= index:
                    frame = self._handle.next()
                    self._next += 1
                rows = frame.asnumpy()
            height, width = rows.shape[:2]
            # If padding makes rows a third longer (144 wide), decord takes it for a fourth channel.
            yield rows.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)


def open_video(
    path: Union[str, Path],
    reader: str = "auto",
    max_pixels: int = MAX_PIXELS,
    segment: Optional[Segment] = None,
) -> FrameReader:
    """Opens a video with "pyav", "decord", "auto", which is PyAV, or "portable".

    "portable" is PyAV with a slower conversion to RGB, which is the same on every processor.

    With `segment`, the frames of this part of the video. PyAV finds them by time stamps
    and reads only this part, if the file has time stamps (`packets.PacketTable`). Else decoding
    starts at the first frame of the video.

    Raises VideoError if the file is missing, empty, damaged, no video, a playlist, or has frames of
    more than `max_pixels` pixels; ValueError if decord does not load.
    """
    portable = reader == "portable"
    reader = "pyav" if reader in ("auto", "portable") else reader
    if reader == "decord":
        try:
            load_library("decord")
        except (ImportError, OSError) as error:  # OSError: its shared library does not load
            advice = "pip install decord2, or --data.reader=auto"
            raise ValueError(f"data.reader decord: {error}; {advice}") from None
    if not os.path.isfile(path) or not os.path.getsize(path):
        raise VideoError(path, reader, "no such file, or an empty one")
    check_header(path, reader)
    load_library("pyav")
    load_library("opencv")  # limits it to one thread; it resizes the frames
    from utils.video.pyav_reader import ExactVideo, NoTimeStampsError  # need PyAV

    with contextlib.suppress(NoTimeStampsError):
        if segment is not None and reader == "pyav":
            return ExactVideo(Path(path), max_pixels, portable, segment)
    exact = ExactVideo(Path(path), max_pixels, portable)
    video: FrameReader = exact
    if reader == "decord" and exact.is_ordinary():
        with contextlib.suppress(VideoError):  # a file without a frame rate, for example
            video = DecordVideo(exact)
            exact.close()
    return video if segment is None else SegmentReader(video, segment)


def open_path(
    path: Union[str, Path],
    data: Any,
    is_folder: Optional[bool] = None,
    num_frames: Optional[int] = None,
    segment: Optional[Segment] = None,
) -> FrameReader:
    """Opens a video file, or a folder of frames, with the settings `data` of a network or a scan.

    Without `is_folder` the path tells; without `num_frames` the frames of a folder are counted.
    """
    if os.path.isdir(path) if is_folder is None else is_folder:
        from utils.video.images import FrameFolder  # here: most trainings read videos

        count = 0 if segment else num_frames
        folder = FrameFolder(
            path, count, data.image_tmpl, data.is_flow, data.max_pixels, data.folder_fps
        )
        return folder if segment is None else folder.cut(segment)
    if data.is_flow:
        raise ValueError(f"{path}: data.modality flow looks at folders of flow images")
    return open_video(path, data.reader, data.max_pixels, segment)


def check_header(path: Union[str, Path], reader: str) -> None:
    """Raises VideoError for an MP4 that is too small for its index.

    FFmpeg makes an index of all samples when it opens a file. An MP4 of a few hundred bytes may
    declare 2**31 samples, by a number alone or by edits that repeat the same samples. FFmpeg would
    then fill the memory, or be busy for hours.
    """
    samples = 0  # of all tracks and fragments
    edits = 1  # of a track
    with reading(path, reader), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for kind, start, _ in read_boxes(file, 0, size, PARENTS):
            if kind in COUNT_OFFSETS:
                file.seek(start + COUNT_OFFSETS[kind])
                count = int.from_bytes(file.read(4), "big")
                if kind == "elst":
                    edits = max(edits, count)
                else:
                    samples += count
    entries = samples * edits
    if entries > max(MIN_LIMIT, ENTRIES_PER_BYTE * size):
        raise VideoError(path, reader, f"its index has {entries} entries for {size} bytes")


def read_boxes(
    file: BinaryIO, start: int, end: int, parents: Collection[str] = ()
) -> Iterator[tuple[str, int, int]]:
    """The boxes of the bytes [start, end) of an MP4, up to the first bytes that are not a box.

    Each is its kind, and where its content starts and ends; the file may be shorter. After a box of
    the kinds `parents` come those inside it.
    """
    while start < end:
        file.seek(start)
        head = file.read(16)
        if len(head) < 8:
            return
        size, kind = struct.unpack(">I4s", head[:8])
        name = kind.decode("latin-1")
        length = 8
        if size == 1 and len(head) == 16:
            size = struct.unpack(">Q", head[8:])[0]
            length = 16
        elif size == 0:  # to the end
            size = end - start
        if not set(name) <= CHARACTERS or size < length:
            return
        yield name, start + length, start + size
        if name in parents:
            yield from read_boxes(file, start + length, min(start + size, end), parents)
        start += size
