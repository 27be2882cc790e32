"""Writes frames with captions drawn in, as H.264 in mp4. No MindSpore here."""

import contextlib
import functools
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from utils.files import report_write_errors, write_beside
from utils.video.reader import load_library

TEXT_LINES = 18  # of text in the height of a frame
MIN_TEXT = 8  # pixels
TICKS = 100  # time stamps from one frame to the next, for files of a variable rate
ENCODER = {"preset": "veryfast", "crf": "23", "threads": "1"}


class CaptionedVideo:
    """A video of `fps` frames per second, which appears at `path` when `close` is called.

    `write` and `close` may be called by different threads. Raises ValueError if `path` does not end
    in .mp4.
    """

    def __init__(self, path: Path, fps: float):
        self.av = load_library("pyav")
        if path.suffix != ".mp4":
            raise ValueError(f"{path} must end in .mp4")
        self.path = path
        self.draft = contextlib.ExitStack()
        self.rate = Fraction(fps).limit_denominator(1001)
        self.lock = threading.Lock()
        self.container: Any = None
        self.last_stamp = -1
        self.is_closed = False

    def write(self, position: float, pixels: np.ndarray, caption: str = "") -> None:
        """Appends an RGB frame (H, W, 3) at the time `position` / fps; positions ascend.

        The lines of `caption` are drawn in a black box at the top left.
        All frames get the size of the first one, less one column or row if it is odd.
        """
        with self.lock, report_write_errors(self.path, "--save"):
            if self.is_closed:
                return
            if pixels.shape[2] != 3:
                raise ValueError(f"{self.path}: optical flow cannot be saved, only RGB frames")
            if self.container is None:
                self.first_position = position
                self.temporary = self.draft.enter_context(write_beside(self.path))
                self.container = self.av.open(str(self.temporary), "w", format="mp4")
                self.stream = self.container.add_stream("libx264", self.rate)
                self.stream.width = pixels.shape[1] & ~1
                self.stream.height = pixels.shape[0] & ~1
                self.stream.pix_fmt = "yuv420p"
                self.stream.codec_context.time_base = 1 / (self.rate * TICKS)
                self.stream.codec_context.options = ENCODER
            width = self.stream.width
            height = self.stream.height
            if abs(pixels.shape[1] - width) > 1 or abs(pixels.shape[0] - height) > 1:
                pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
            pixels = np.array(pixels[:height, :width], np.uint8, order="C")
            if caption:
                box = draw_text(caption, max(height // TEXT_LINES, MIN_TEXT))[:height, :width]
                pixels[: box.shape[0], : box.shape[1]] = box
            planes = cv2.cvtColor(pixels, cv2.COLOR_RGB2YUV_I420)
            frame = self.av.VideoFrame.from_ndarray(planes, format="yuv420p")
            stamp = round((position - self.first_position) * TICKS)
            self.last_stamp = max(stamp, self.last_stamp + 1)
            frame.pts = self.last_stamp
            frame.time_base = 1 / (self.rate * TICKS)
            self.container.mux(self.stream.encode(frame))

    def close(self) -> None:
        """Completes the file. Without a frame there is none, and an older one stays."""
        with self.lock, report_write_errors(self.path, "--save"), self.draft:
            is_done = self.is_closed or self.container is None
            self.is_closed = True
            if not is_done:
                self.container.mux(self.stream.encode())
                self.container.close()
                self.temporary.replace(self.path)


@functools.lru_cache(4)
def draw_text(text: str, size: int) -> np.ndarray:
    """White letters of `size` pixels on black: uint8 (h, w, 3)."""
    font = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", size)
    margin = size // 3
    left, top, right, bottom = ImageDraw.Draw(Image.new("L", (1, 1))).multiline_textbbox(
        (0, 0), text, font=font
    )
    image = Image.new("L", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin))
    ImageDraw.Draw(image).multiline_text((margin - left, margin - top), text, fill=255, font=font)
    return np.repeat(np.asarray(image)[..., None], 3, axis=2)
