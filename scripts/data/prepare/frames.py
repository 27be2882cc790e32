"""Writes the frames of a video into a folder of images.

No MindSpore here: worker processes start fast and stay small.
"""

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple, Union

import cv2
import numpy as np

from scripts.data.prepare.encoder import downscale
from scripts.data.prepare.integrity import VideoJob
from utils.video.frame_folder import count_frames
from utils.video.reader import HALF_MILLISECOND, Timeline, VideoError, find_time

KEY = ".zoo_frames"
SUFFIXES = (".jpg", ".jpeg", ".png")


class FrameJob(NamedTuple):
    """A video, and the folder for its frames."""

    video: VideoJob
    folder: str
    image_tmpl: str
    fps: float  # 0: all frames of the video
    short_side: int  # pixels; larger frames are downscaled to it; 0: all keep their size
    quality: int  # of JPEG, 1 to 100


def extract_frames(job: FrameJob) -> Union[int, VideoError]:
    """Returns the number of frames in the folder, or why the video cannot be read.

    A complete folder, whose file KEY names the settings and the size of the video, is not written
    again. An incomplete one ends in `.tmp`. OSError if a file cannot be written, ValueError if the
    folder is another one.
    """
    folder = Path(job.folder)
    size = os.path.getsize(job.video.path) if os.path.isfile(job.video.path) else 0
    key = json.dumps([job.fps, job.short_side, job.quality, job.image_tmpl, size])
    if folder.is_dir() and size and read_key(folder) != key:
        raise ValueError(
            f"--out: {folder} is of other settings or of another video: delete it, or choose "
            "another folder"
        )
    if folder.is_file():
        raise ValueError(
            f"--out: {folder} is a file, not a folder for frames; choose another --out"
        )
    temporary = Path(f"{folder}.tmp")
    try:
        if not folder.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            write_frames(job, temporary)
            (temporary / KEY).write_text(key)
            os.replace(temporary, folder)
        return count_frames(folder, job.image_tmpl)
    except VideoError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        return error


def read_key(folder: Path) -> str:
    """What the folder was made of; empty if this module did not make it."""
    try:
        return (folder / KEY).read_text()
    except (OSError, ValueError):
        return ""


def write_frames(job: FrameJob, folder: Path) -> None:
    written = 0
    with job.video.open() as video:
        copies = count_copies(video, job.fps)
        for frame, count in zip(video.in_order(), copies):
            if count == 0:
                continue
            pixels = downscale(frame, job.short_side, even=False)
            data = encode_image(pixels, Path(job.image_tmpl).suffix, job.quality)
            for _ in range(count):
                written += 1
                (folder / job.image_tmpl.format(written)).write_bytes(data)


def count_copies(video: Timeline, fps: float) -> np.ndarray:
    """int64 (len(video),): how often each frame of a video is shown at a rate of `fps`."""
    length = len(video)
    if not fps or not video.fps:
        return np.ones(length, np.int64)
    frames = max(round(float(find_time(video, length)) * fps), 1)
    starts = find_time(video, np.arange(length))
    shown = np.searchsorted(starts, np.arange(frames) / fps + HALF_MILLISECOND, "right") - 1
    return np.bincount(shown, minlength=length)


def encode_image(pixels: np.ndarray, suffix: str, quality: int) -> bytes:
    """The bytes of an image file of RGB pixels (H, W, 3); `quality` is that of JPEG."""
    options = [] if suffix == ".png" else [cv2.IMWRITE_JPEG_QUALITY, quality]
    return cv2.imencode(suffix, np.ascontiguousarray(pixels[..., ::-1]), options)[1].tobytes()
