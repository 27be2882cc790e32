"""Frame sampling of MViTv2, and random crop boxes.

Source: JunweiLiang/MultiTrain, commit 16723114 (`datasets/decoder.py`, `datasets/ssv2.py`,
`datasets/transform.py`, `datasets/utils.py`). Random functions take a `draw`: a function that
returns the next number in [0, 1).
"""

import math
from typing import Optional

import numpy as np

from utils.video.augment import Draw, draw_between, draw_integer
from utils.video.transforms import Box, scale_short_side

ASPECT = (0.75, 1.3333)  # width / height of a random crop


def compute_clip_span(frames: int, stride: int, fps: float, target_fps: float) -> float:
    """The number of source frames that a clip spans, a real number."""
    return stride * frames / target_fps * fps


def compute_view_start(view: int, views: int, last_start: float) -> float:
    """The first frame of a test view, at most `last_start`; a single view is in the middle."""
    if views == 1:
        return math.floor(last_start / 2)
    return view * math.floor(last_start / (views - 1))


def sample_by_time(start: float, span: float, frames: int, length: int) -> np.ndarray:
    """`frames` frame indices at equal distances over `span` source frames from `start`, int64.

    Like the source, it first selects a part of the video and then the clip in the middle of this
    part. A video that is too short repeats its last frame.
    """
    part_start = max(min(int(start), length - 2), 0)
    part_end = min(int(start + span - 1), length - 1)
    part = part_end - part_start + 1
    begin = math.floor(max(part - span, 0) / 2)
    positions = np.linspace(begin, begin + span - 1, frames, dtype=np.float32)
    return part_start + np.clip(positions, 0, part - 1).astype(np.int64)


def sample_by_segments(frames: int, length: int, draw: Optional[Draw] = None) -> np.ndarray:
    """One frame index of each of `frames` equal segments: the middle, or with `draw` a random one.

    Returns int64. Edges are rounded, halves to even, and both edges belong to a segment.
    """
    gap = (length - 1) / frames
    edges = [round(gap * i) for i in range(frames + 1)]
    segments = zip(edges, edges[1:])
    if draw is None:
        return np.array([(low + high) // 2 for low, high in segments], np.int64)
    return np.array([draw_integer(draw, low, high) for low, high in segments], np.int64)


def draw_crop_box(width: int, height: int, draw: Draw, area: tuple[float, float]) -> Box:
    """A box of random area (fraction of the frame) and aspect, which is within ASPECT.

    After ten boxes that do not fit it returns the largest such box in the centre.
    """
    for _ in range(10):
        target_area = width * height * draw_between(draw, *area)
        ratio = math.exp(draw_between(draw, math.log(ASPECT[0]), math.log(ASPECT[1])))
        w = round(math.sqrt(target_area * ratio))
        h = round(math.sqrt(target_area / ratio))
        if 0 < w <= width and 0 < h <= height:
            y = draw_integer(draw, 0, height - h)
            x = draw_integer(draw, 0, width - w)
            return x, y, w, h
    w = min(width, round(height * ASPECT[1]))
    h = min(height, round(width / ASPECT[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def draw_scaled_crop(
    width: int, height: int, scales: tuple[int, int], crop: int, draw: Draw
) -> tuple[tuple[int, int], Box]:
    """((width, height) of a scaled frame, a random square box of `crop` pixels in it).

    The short side lies between the two `scales` and is drawn uniformly in 1 / side. The last
    possible offset is never drawn, because the upper bound of the source is exclusive.
    """
    side = round(1 / draw_between(draw, 1 / scales[1], 1 / scales[0]))
    scaled_w, scaled_h = scale_short_side(width, height, side)
    y = draw_integer(draw, 0, scaled_h - crop - 1) if scaled_h > crop else 0
    x = draw_integer(draw, 0, scaled_w - crop - 1) if scaled_w > crop else 0
    return (scaled_w, scaled_h), (x, y, crop, crop)
