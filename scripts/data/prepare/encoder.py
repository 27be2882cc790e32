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
from typing import NamedTuple

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
LOWEST_PSNR = 20.0  # dB; below it, the copy shows another picture
# Of folders of images
KEY_FILE = ".zoo_frames"
BOUND = 20.0  # pixels a frame: the largest flow of an image, as in TSN's dense_flow
SUFFIXES = (".jpg", ".jpeg", ".png")


class EncodeJob(NamedTuple):
    """A video, and the MP4 file to write."""

    video: VideoJob
    target: str
    short_side: int  # pixels; larger videos are downscaled to it; 0: all keep their size
    gop: int  # pictures from one key frame to the next
    quality: int  # constant rate factor, 0 to 51, lower is better


def reencode_video(job: EncodeJob, drafts: str) -> Finding:
    """Writes the file of a job, whole or not at all; the kind is GOOD, or why there is no file.

    `drafts` is a folder for files that are not complete.

    A file that this function wrote before, by the same settings from a video of the same size, is
    not written again. OSError if the file cannot be written, ValueError if it is another one.
    """
    target = Path(job.target)
    size = os.path.getsize(job.video.path) if os.path.isfile(job.video.path) else 0
    options = job.short_side, job.gop, job.quality
    key = json.dumps([*options, str(job.video.segment or ""), size])
    if os.path.lexists(target):
        written = ""  # the settings and the size of the original, if this function wrote it
        with (
            contextlib.suppress(OSError, ValueError),
            open_container(target, job.video.max_pixels) as container,
        ):
            written = container.metadata.get(KEY, "")
        if size and written != key:
            raise ValueError(
                f"--out: {target} is of other settings or of another video: delete it, or choose "
                "another folder"
            )
        return Finding(GOOD)
    try:
        finding = examine(job.video)
        if finding.kind not in (GOOD, DAMAGED):
            return finding
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=drafts) as folder, job.video.open() as video:
            temporary = Path(folder, "copy.mp4")
            probes = encode(video, temporary, job, key)
            with open_video(temporary, max_pixels=job.video.max_pixels) as copy:
                if len(copy) != len(video):
                    reason = f"the copy has {len(copy)} of {len(video)} frames"
                    raise VideoError(copy.path, copy.reader, reason)
                psnr = cv2.PSNR(copy.frames(sorted(probes)), np.stack([*probes.values()]))
                if psnr < LOWEST_PSNR:
                    raise VideoError(copy.path, copy.reader, "the copy shows something else")
            os.replace(temporary, target)
        return Finding(GOOD)
    except VideoError as error:
        return Finding("broken", error.args[-1])


def encode(video: FrameReader, path: Path, job: EncodeJob, key: str) -> dict[int, np.ndarray]:
    """Writes all frames of a video with their times; returns some of them as they were encoded.

    Every group of pictures is closed. Between two reference frames are two non-reference frames,
    which a reader can leave out. The tuning for fast decoding turns off arithmetic coding and the
    loop filter; psychovisual optimisation (psy) is off.
    """
    probes = dict.fromkeys((0, len(video) // 2, len(video) - 1), np.empty(0))
    rate = Fraction(video.fps or DEFAULT_FPS).limit_denominator(1001)
    unit = 1 / rate if video.times is None else VARIABLE_UNIT
    groups = f"keyint={job.gop}:min-keyint={job.gop}:scenecut=0:open-gop=0"
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
            "crf": str(job.quality),
            "bf": "2",
            "b_strategy": "0",
            "x264-params": f"{groups}:b-pyramid=none:ref=1:psy=0:{DETERMINISTIC}",
        }
        stamp = -1
        for number, frame in enumerate(prepare_frames(video, job.short_side)):
            if not number:
                height, stream.width = frame.shape[:2]
                stream.height = height
                # yuv420p halves the resolution of colours, so it needs even sides.
                is_odd = height % 2 or stream.width % 2
                stream.pix_fmt = "yuv444p" if is_odd else "yuv420p"
            if number in probes:
                probes[number] = frame
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
    return probes


def prepare_frames(video: FrameReader, short_side: int) -> Iterator[np.ndarray]:
    """All frames, downscaled; VideoError for several sizes."""
    shape = None
    with reading(video.path, video.reader):
        for frame in video.in_order():
            shape = shape or frame.shape
            if frame.shape != shape:
                raise VideoError(video.path, video.reader, f"frames {shape} and {frame.shape}")
            yield downscale(frame, short_side)


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
    planes = cv2.cvtColor(frame, cv2.COLOR_RGB2YUV_I420)
    return av.VideoFrame.from_ndarray(planes, format="yuv420p")


class FrameJob(NamedTuple):
    """A video, and the folder for its frames."""

    video: VideoJob
    target: str
    image_tmpl: str
    fps: float  # 0: all frames of the video
    short_side: int  # pixels; larger frames are downscaled to it; 0: all keep their size
    quality: int  # of JPEG, 1 to 100
    flow: bool = False  # write the optical flow, one image each for x and y


def extract_frames(job: FrameJob, drafts: str) -> Finding:
    """Writes the folder of a job; its number of frames, or why the video cannot be read.

    A complete folder, whose KEY_FILE names the settings and the size of the video, is not written
    again. An incomplete one is in the folder `drafts`. OSError if a file cannot be written,
    ValueError if the folder is another one.
    """
    folder = Path(job.target)
    suffix = Path(job.image_tmpl).suffix
    options = [] if suffix == ".png" else [cv2.IMWRITE_JPEG_QUALITY, job.quality]
    size = os.path.getsize(job.video.path) if os.path.isfile(job.video.path) else 0
    key = json.dumps([job.fps, job.short_side, job.quality, job.image_tmpl, size])
    key_file = folder / KEY_FILE
    written = key_file.read_text(errors="replace") if key_file.is_file() else ""
    if folder.is_dir() and size and written != key:
        raise ValueError(
            f"--out: {folder} is of other settings or of another video: delete it, or choose "
            "another folder"
        )
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=drafts) as scratch, job.video.open() as video:
                images = Path(scratch, "images")
                images.mkdir()
                for name, pixels in name_images(job, video):
                    data = cv2.imencode(suffix, np.ascontiguousarray(pixels), options)[1]
                    (images / name).write_bytes(data.tobytes())
                (images / KEY_FILE).write_text(key)
                os.replace(images, folder)
        return Finding(GOOD, frames=len(FrameFolder(folder, None, job.image_tmpl, job.flow)))
    except VideoError as error:
        return Finding("broken", error.args[-1])


def name_images(job: FrameJob, video: FrameReader) -> Iterator[tuple[str, np.ndarray]]:
    """(file name, pixels) of all images of a job: BGR (H, W, 3), or of the flow grey (H, W)."""
    if not job.flow:
        for number, frame in enumerate(show_frames(job, video), 1):
            yield job.image_tmpl.format(number), frame[..., ::-1]
        return
    for number, flow in enumerate(compute_flow(job, video), 1):
        for axis, pixels in zip("xy", flow):
            yield job.image_tmpl.format(axis, number), pixels


def show_frames(job: FrameJob, video: FrameReader) -> Iterator[np.ndarray]:
    """The frames that are shown at the rate of the job, downscaled."""
    for frame, count in zip(video.in_order(), count_copies(video, job.fps)):
        if count:
            yield from [downscale(frame, job.short_side, even=False)] * count


def compute_flow(job: FrameJob, video: FrameReader) -> Iterator[np.ndarray]:
    """The optical flow from each shown frame to the next, uint8 (2, H, W): x, y.

    0 to 255 stand for -BOUND to BOUND pixels, and 128 for no motion. Raises VideoError if the video
    has one frame, or frames of several sizes.
    """
    if count_copies(video, job.fps).sum() < 2:
        raise VideoError(video.path, "OpenCV", "it has one frame, and optical flow needs two")
    method = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    frames = show_frames(job, video)
    before = cv2.cvtColor(next(frames), cv2.COLOR_RGB2GRAY)
    with reading(video.path, "OpenCV"):
        for frame in frames:
            grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
            flow = method.calc(before, grey, None).clip(-BOUND, BOUND)
            yield np.rint((flow + BOUND) * (255 / (2 * BOUND))).astype(np.uint8).transpose(2, 0, 1)
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
