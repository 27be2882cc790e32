"""Writes the frames of a video, or its optical flow, into a folder of images.

No MindSpore here: worker processes start fast and stay small.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from scripts.data.prepare.encoder import downscale
from scripts.data.prepare.integrity import GOOD, Finding, VideoJob
from utils.video.images import count_frames
from utils.video.reader import (
    HALF_MILLISECOND,
    FrameReader,
    Timeline,
    VideoError,
    find_time,
    reading,
)

KEY = ".zoo_frames"
BOUND = 20.0  # pixels a frame: the largest flow of an image, as in TSN's dense_flow
SUFFIXES = (".jpg", ".jpeg", ".png")


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

    A complete folder, whose file KEY names the settings and the size of the video, is not written
    again. An incomplete one is in the folder `drafts`. OSError if a file cannot be written,
    ValueError if the folder is another one.
    """
    folder = Path(job.target)
    size = os.path.getsize(job.video.path) if os.path.isfile(job.video.path) else 0
    key = json.dumps([job.fps, job.short_side, job.quality, job.image_tmpl, size])
    key_file = folder / KEY
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
                    (images / name).write_bytes(encode_image(pixels, name, job.quality))
                (images / KEY).write_text(key)
                os.replace(images, folder)
        return Finding(GOOD, frames=count_frames(folder, job.image_tmpl, job.flow))
    except VideoError as error:
        return Finding("broken", error.args[-1])


def name_images(job: FrameJob, video: FrameReader) -> Iterator[tuple[str, np.ndarray]]:
    """(file name, pixels) of all images of a job."""
    if not job.flow:
        for number, frame in enumerate(show_frames(job, video), 1):
            yield job.image_tmpl.format(number), frame
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


def encode_image(pixels: np.ndarray, name: str, quality: int) -> bytes:
    """The bytes of an image file, RGB (H, W, 3) or grey (H, W); `quality` is that of JPEG."""
    suffix = Path(name).suffix
    options = [] if suffix == ".png" else [cv2.IMWRITE_JPEG_QUALITY, quality]
    pixels = pixels[..., ::-1] if pixels.ndim == 3 else pixels
    return cv2.imencode(suffix, np.ascontiguousarray(pixels), options)[1].tobytes()
