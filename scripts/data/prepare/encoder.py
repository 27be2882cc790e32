"""Encodes videos as MP4 files that are read fast: H.264 with short groups of pictures, no audio.

And writes the frames of a video, or its optical flow, into a folder of images.
No MindSpore here: worker processes start fast and stay small.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter

from scripts.data.prepare.integrity import DAMAGED, GOOD, Finding, VideoJob, examine
from utils.video.decoders import open_video
from utils.video.images import FrameFolder
from utils.video.pyav_reader import open_container
from utils.video.reader import (
    DEFAULT_FPS,
    HALF_MILLISECOND,
    FrameReader,
    Timeline,
    VideoError,
    find_time,
    reading,
)
from utils.video.transforms import scale_short_side

MAX_QUALITY = 51  # of x264's constant rate factor
# x264 settings with which the same frames give the same bytes every time.
DETERMINISTIC = "rc-lookahead=0:mbtree=0:lookahead-threads=1:cpu-independent=1"
VARIABLE_UNIT = Fraction(1, 90_000)  # seconds: of the time stamps of a variable frame rate
KEY = "comment"  # the field of an MP4 file that has the settings and the size of the original
# Of folders of images
KEY_FILE = ".zoo_frames"
BOUND = 20.0  # pixels a frame: the largest flow of an image, as in TSN's dense_flow
SUFFIXES = (".jpg", ".jpeg", ".png")
OTHER = "--out: {} is of other settings or of another video: delete it, or choose another folder"
Copy = tuple[VideoJob, str]  # a video, and the file or folder to write


def reencode_video(job: Copy, drafts: str, short_side: int, gop: int, quality: int) -> Finding:
    """Writes the file of a job, whole or not at all; the kind is GOOD, or why there is no file.

    Videos whose short side is larger than `short_side` pixels are downscaled to it; 0 keeps all
    sizes. A key frame comes every `gop` pictures. `quality` is the constant rate factor, 0 to 51,
    lower is better. `drafts` is a folder for files that are not complete.

    A file that this function wrote before, by the same settings from a video of the same size, is
    not written again. OSError if the file cannot be written, ValueError if it is another one.
    """
    source, target = job
    size = os.path.getsize(source.path) if os.path.isfile(source.path) else 0
    key = json.dumps([short_side, gop, quality, str(source.segment or ""), size])
    if os.path.lexists(target):
        written = ""  # the settings and the size of the original, if this function wrote it
        with (
            contextlib.suppress(OSError, ValueError),
            open_container(Path(target), source.max_pixels) as container,
        ):
            written = container.metadata.get(KEY, "")
        if size and written != key:
            raise ValueError(OTHER.format(target))
        return Finding(GOOD)
    try:
        finding = examine(source)
        if finding.kind not in (GOOD, DAMAGED):
            return finding
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with tempfile.TemporaryDirectory(dir=drafts) as folder, source.open() as video:
            draft = Path(folder, "copy.mp4")
            encode(video, draft, short_side, gop, quality, key)
            with open_video(draft, max_pixels=source.max_pixels) as copy:
                if len(copy) != len(video):
                    reason = f"the copy has {len(copy)} of {len(video)} frames"
                    raise VideoError(copy.path, copy.reader, reason)
            os.replace(draft, target)
        return Finding(GOOD)
    except VideoError as error:
        return Finding("broken", error.args[-1])


def encode(
    video: FrameReader, path: Path, short_side: int, gop: int, quality: int, key: str
) -> None:
    """Writes all frames of a video with their times.

    Every group of pictures is closed. Between two reference frames are two non-reference frames,
    which a reader can leave out. The tuning for fast decoding turns off arithmetic coding and the
    loop filter; psychovisual optimisation (psy) is off.
    """
    rate = Fraction(video.fps or DEFAULT_FPS).limit_denominator(1001)
    unit = 1 / rate if video.times is None else VARIABLE_UNIT
    groups = f"keyint={gop}:min-keyint={gop}:scenecut=0:open-gop=0"
    with (
        open(path, "wb") as file,
        av.open(file, "w", format="mp4", options={"movflags": "faststart"}) as container,
    ):
        container.metadata[KEY] = key
        stream = container.add_stream("libx264", rate)
        stream.codec_context.time_base = unit
        stream.codec_context.thread_count = 1  # many workers encode at once
        stream.codec_context.options = {
            "preset": "veryfast",
            "tune": "fastdecode",
            "crf": str(quality),
            "bf": "2",
            "b_strategy": "0",
            "x264-params": f"{groups}:b-pyramid=none:ref=1:psy=0:{DETERMINISTIC}",
        }
        stamp = -1
        for number, frame in enumerate(video.in_order()):
            frame = downscale(frame, short_side)
            if not number:
                stream.height, stream.width = frame.shape[:2]
                # yuv420p halves the resolution of colours, so it needs even sides.
                is_odd = frame.shape[0] % 2 or frame.shape[1] % 2
                stream.pix_fmt = "yuv444p" if is_odd else "yuv420p"
            if stream.pix_fmt == "yuv444p":
                rgb = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
                picture = VideoReformatter().reformat(rgb, format="yuv444p", threads=1)
            else:
                picture = to_yuv420p(frame)
            picture.time_base = unit
            stamp = max(round(find_time(video, number) / unit), stamp + 1)  # two may be equal
            picture.pts = stamp
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def downscale(frame: np.ndarray, short_side: int, even: bool = True) -> np.ndarray:
    """A frame with this short side, if it is larger; 0 keeps its size. H.264 needs even sides."""
    height, width = frame.shape[:2]
    if not short_side or min(width, height) <= short_side:
        return frame
    size = scale_short_side(width, height, short_side)
    if even:
        size = [side + side % 2 for side in size]
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA)


def to_yuv420p(frame: np.ndarray) -> av.VideoFrame:
    """A picture of RGB pixels, always the same: FFmpeg's scaler reads past narrow frames' edges."""
    return av.VideoFrame.from_ndarray(cv2.cvtColor(frame, cv2.COLOR_RGB2YUV_I420), format="yuv420p")


def extract_frames(
    job: Copy, drafts: str, image_tmpl: str, fps: float, short_side: int, quality: int, flow: bool
) -> Finding:
    """Writes the folder of a job; its number of frames, or why the video cannot be read.

    `fps` 0 writes all frames of the video; `quality` is that of JPEG, 1 to 100; `short_side` as for
    `reencode_video`.

    A complete folder, whose KEY_FILE names the settings and the size of the video, is not written
    again. An incomplete one is in the folder `drafts`. OSError if a file cannot be written,
    ValueError if the folder is another one.
    """
    source, target = job
    folder = Path(target)
    suffix = Path(image_tmpl).suffix
    options = [] if suffix == ".png" else [cv2.IMWRITE_JPEG_QUALITY, quality]
    size = os.path.getsize(source.path) if os.path.isfile(source.path) else 0
    key = json.dumps([fps, short_side, quality, image_tmpl, size])
    key_file = folder / KEY_FILE
    written = key_file.read_text(errors="replace") if key_file.is_file() else ""
    if folder.is_dir() and size and written != key:
        raise ValueError(OTHER.format(folder))
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=drafts) as scratch, source.open() as video:
                images = Path(scratch, "images")
                images.mkdir()
                for name, pixels in name_images(video, image_tmpl, fps, short_side, flow):
                    data = cv2.imencode(suffix, np.ascontiguousarray(pixels), options)[1]
                    (images / name).write_bytes(data.tobytes())
                (images / KEY_FILE).write_text(key)
                os.replace(images, folder)
        return Finding(GOOD, frames=len(FrameFolder(folder, None, image_tmpl, flow)))
    except VideoError as error:
        return Finding("broken", error.args[-1])


def name_images(
    video: FrameReader, image_tmpl: str, fps: float, short_side: int, flow: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """(file name, pixels) of the frames that are shown at a rate of `fps`: BGR (H, W, 3).

    Or, with `flow`, of the optical flow from each of them to the next: x and y, each grey (H, W).
    0 to 255 stand for -BOUND to BOUND pixels, and 128 for no motion. Raises VideoError if the video
    then has one frame, or frames of several sizes.
    """
    copies = count_copies(video, fps)
    if flow and copies.sum() < 2:
        raise VideoError(video.path, "OpenCV", "it has one frame, and optical flow needs two")
    shown = (
        downscale(frame, short_side, even=False)
        for frame, count in zip(video.in_order(), copies)
        for _ in range(count)
    )
    if not flow:
        for number, frame in enumerate(shown, 1):
            yield image_tmpl.format(number), frame[..., ::-1]
        return
    method = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    before = cv2.cvtColor(next(shown), cv2.COLOR_RGB2GRAY)
    for number, frame in enumerate(shown, 1):
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        with reading(video.path, "OpenCV"):
            motion = method.calc(before, grey, None).clip(-BOUND, BOUND)
        levels = np.rint((motion + BOUND) * (255 / (2 * BOUND))).astype(np.uint8)
        for k, axis in enumerate("xy"):
            yield image_tmpl.format(axis, number), levels[..., k]
        before = grey


def count_copies(video: Timeline, fps: float) -> np.ndarray:
    """int64 (len(video),): how often each frame of a video is shown at a rate of `fps`."""
    length = len(video)
    if not fps or not video.fps:
        return np.ones(length, np.int64)
    frames = max(round(float(find_time(video, length)) * fps), 1)
    starts = find_time(video, np.arange(length))
    shown = np.searchsorted(starts, np.arange(frames) / fps + HALF_MILLISECOND, "right") - 1
    return np.bincount(shown, minlength=length)
