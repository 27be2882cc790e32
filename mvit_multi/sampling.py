"""Which frames of a video become a clip, and where random crops and erased boxes lie.

Source: JunweiLiang/MultiTrain, commit 16723114 (`datasets/decoder.py`, `datasets/ssv2.py`,
`datasets/transform.py`, `datasets/random_erasing.py`). What asks for chance takes a `draw`, a
function that gives the next number in [0, 1).
"""

import math
from typing import Callable, Optional

import numpy as np

from utils.video.decoders import Box

Draw = Callable[[], float]
AREA, ASPECT = (0.08, 1.0), (0.75, 1.3333)  # of a random crop, as shares of the frame
ERASED, ERASED_ASPECT = (0.02, 1 / 3), 0.3


def clip_span(frames: int, stride: int, fps: float, target_fps: float) -> float:
    """Source frames that a clip spans."""
    return stride * frames / target_fps * fps


def start_of_view(view: int, views: int, room: float) -> float:
    """The first frame of a test view; one view alone starts in the middle of the room."""
    return math.floor(room / 2) if views == 1 else view * math.floor(room / (views - 1))


def timed_indices(start: float, span: float, frames: int, length: int) -> np.ndarray:
    """`frames` frame numbers spread over `span` source frames from `start`, int64.

    As the source does it: a piece is cut out of the video first, then the clip out of the middle of
    the piece. A video that is too short repeats its last frame.
    """
    first = max(min(int(start), length - 2), 0)
    last = min(int(start + span - 1), length - 1)
    piece = last - first + 1
    begin = math.floor(max(piece - span, 0) / 2)
    places = np.linspace(begin, begin + span - 1, frames, dtype=np.float32)
    return first + np.clip(places, 0, piece - 1).astype(np.int64)


def segment_indices(frames: int, length: int, draw: Optional[Draw] = None) -> np.ndarray:
    """One frame out of each of `frames` equal segments: the middle one, or a drawn one, int64.

    Halves are rounded to even, and both ends belong to a segment.
    """
    gap = (length - 1) / frames
    edges = [round(gap * i) for i in range(frames + 1)]
    if draw is None:
        return np.array([(low + high) // 2 for low, high in zip(edges, edges[1:])], np.int64)
    return np.array([integer(draw, low, high) for low, high in zip(edges, edges[1:])], np.int64)


def integer(draw: Draw, low: int, high: int) -> int:
    """Uniform from low to high, both included."""
    return low + int(draw() * (high - low + 1))


def between(draw: Draw, low: float, high: float) -> float:
    return low + draw() * (high - low)


def random_box(
    width: int,
    height: int,
    draw: Draw,
    area: tuple[float, float] = AREA,
    aspect: tuple[float, float] = ASPECT,
) -> Box:
    """A box of random area and aspect in a frame; the middle of it after ten misses."""
    for _ in range(10):
        wanted = width * height * between(draw, *area)
        ratio = math.exp(between(draw, math.log(aspect[0]), math.log(aspect[1])))
        w, h = round(math.sqrt(wanted * ratio)), round(math.sqrt(wanted / ratio))
        if 0 < w <= width and 0 < h <= height:
            y, x = integer(draw, 0, height - h), integer(draw, 0, width - w)
            return x, y, w, h
    ratio = width / height
    if ratio < aspect[0]:
        w, h = width, round(width / aspect[0])
    elif ratio > aspect[1]:
        w, h = round(height * aspect[1]), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h


def erased_box(width: int, height: int, prob: float, draw: Draw) -> Optional[Box]:
    """A box to erase, with probability `prob`; smaller than the frame in both directions."""
    if draw() > prob:
        return None
    for _ in range(100):
        wanted = between(draw, *ERASED) * width * height
        ratio = math.exp(between(draw, math.log(ERASED_ASPECT), math.log(1 / ERASED_ASPECT)))
        h, w = round(math.sqrt(wanted * ratio)), round(math.sqrt(wanted / ratio))
        if w < width and h < height:
            y, x = integer(draw, 0, height - h), integer(draw, 0, width - w)
            return x, y, w, h
    return None
