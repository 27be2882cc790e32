"""Reads frames of video files. No MindSpore here.

A `FrameReader` has `len(video)` frames and `video.frames(indices)`: uint8, channels last, RGB.
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
stops if frames are hours apart; FFmpeg 7 (PyAV 15) misreads such files.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from utils.video.frame_folder import open_folder
from utils.video.libraries import MODULES, load_library
from utils.video.mp4_boxes import check_header
from utils.video.reader import (
    MAX_PIXELS,
    NO_VIDEO,
    FrameReader,
    Segment,
    SegmentReader,
    VideoError,
    VideoFile,
    check_size,
    plain_path,
)

READERS = ("auto", *MODULES)
_DECORD_PREFIX = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")


class _DecordVideo(VideoFile):
    def _open(self) -> int:
        if not self._length and load_library("opencv") is not None:
            _open_packets(self.path, self._max_pixels)  # checks the size before decord decodes
        try:
            # decord replaces a frame that it cannot decode by a neighbour; fault_tol makes it fail.
            decord = load_library("decord")
            with plain_path(self.path) as path:
                self._handle = decord.VideoReader(path, num_threads=1, fault_tol=1e-9)
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
        cv2 = load_library("opencv")
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
    cv2 = load_library("opencv")
    capture = _open_capture(path, cv2.CAP_PROP_FORMAT, -1)
    if not capture.isOpened():
        return None
    width, height = (capture.get(f) for f in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    check_size(int(width), int(height), max_pixels)
    return capture


def _open_capture(path: Path, *settings: int) -> Any:
    cv2 = load_library("opencv")
    with plain_path(path) as plain:
        return cv2.VideoCapture(plain, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1, *settings])


def open_video(
    path: Union[str, Path],
    reader: str = "auto",
    max_pixels: int = MAX_PIXELS,
    segment: Optional[Segment] = None,
) -> FrameReader:
    """Opens a video with "pyav", "decord", "opencv", or "auto": the first that is installed.

    With `segment`, the frames are those of this part of the video. PyAV finds them by time stamps
    and reads only this part, if the file has time stamps (`pyav_reader.CONTAINERS`). Else they
    follow from the frame rate, and decoding starts at the first frame of the video.

    Raises VideoError if the file is missing, empty, damaged, no video, a playlist, or has frames of
    more than `max_pixels` pixels; ValueError if the reader is unknown or not installed.
    """
    if reader not in READERS:
        raise ValueError(f"data.reader is {reader!r}; choose one of {', '.join(READERS)}")
    if reader == "auto":
        reader = next((name for name in MODULES if load_library(name) is not None), "opencv")
    if load_library(reader) is None:
        package = {"pyav": "av", "decord": "decord2"}.get(reader, "opencv-python-headless")
        raise ValueError(
            f"data.reader is {reader!r}, which is not installed: pip install {package}, "
            "or --data.reader=auto"
        )
    if not os.path.isfile(path) or not os.path.getsize(path):
        raise VideoError(path, reader, "no such file, or an empty one")
    check_header(path, reader)
    load_library("opencv")  # limits OpenCV to one thread, also if it only resizes
    video: FrameReader
    if reader == "pyav":
        from utils.video.pyav_reader import ExactSegment, ExactVideo, NoTimeStampsError  # need PyAV

        with contextlib.suppress(NoTimeStampsError):
            if segment is not None:
                return ExactSegment(Path(path), max_pixels, segment)
        video = ExactVideo(Path(path), max_pixels)
    else:
        back_end = _DecordVideo if reader == "decord" else _OpenCVVideo
        video = back_end(Path(path), reader, max_pixels)
    return video if segment is None else SegmentReader(video, segment)


def open_path(path: str, data: Any) -> FrameReader:
    """Opens a video file, or a folder of frames, with the settings `data` of a network."""
    if os.path.isdir(path):
        return open_folder(path, data)
    if data.is_flow:
        raise ValueError(f"{path}: data.modality flow looks at folders of flow images")
    return open_video(path, data.reader, data.max_pixels)


def _decord_reason(error: Exception) -> str:
    lines = _DECORD_PREFIX.sub("", str(error)).splitlines()
    return lines[0] if lines else type(error).__name__
