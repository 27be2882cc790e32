"""From the frames of a video to the views of a test, as PySlowFast takes them.

Frames come as uint8 (n, H, W, 3); clips leave as uint8 (3, T, crop, crop). The source resizes
normalised float32 frames, bilinear without antialiasing; `resize` gives its pixels before rounding,
and a clip is at most half a level of 255 away from them, because clips travel as uint8.
Source: facebookresearch/SlowFast, commit 287ec007 (`datasets/transform.py`).
"""

import math

import cv2
import numpy as np

from utils.video import Box


def scaled(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height at which the short side is `side`; the long one is rounded down."""
    if min(width, height) == side:
        return width, height
    if width < height:
        return side, int(math.floor(float(height) / width * side))
    return int(math.floor(float(width) / height * side)), side


def test_box(width: int, height: int, crop: int, place: int) -> Box:
    """Place 0, 1, 2 along the longer side: left (top), centre, right (bottom)."""
    y, x = math.ceil((height - crop) / 2), math.ceil((width - crop) / 2)
    if height > width:
        y = (0, y, height - crop)[place]
    else:
        x = (0, x, width - crop)[place]
    return x, y, crop, crop


def resize(frames: np.ndarray, width: int, height: int) -> np.ndarray:
    """Bilinear with half-pixel centres: float32 (n, height, width, 3), levels of 0 to 255."""
    frames = frames.astype(np.float32)
    if frames.shape[1:3] == (height, width):
        return frames
    return np.stack(
        [cv2.resize(f, (width, height), interpolation=cv2.INTER_LINEAR) for f in frames]
    )


def cut(frames: np.ndarray, box: Box) -> np.ndarray:
    """A box of float frames, rounded, channels first: uint8 (3, n, h, w)."""
    x, y, width, height = box
    part = frames[:, y : y + height, x : x + width]
    return np.ascontiguousarray(np.rint(part).astype(np.uint8).transpose(3, 0, 1, 2))


def test_views(
    frames: np.ndarray, clips: np.ndarray, side: int, crop: int, crops: int
) -> np.ndarray:
    """All views of a video: uint8 (clips * crops, 3, T, crop, crop), crop after crop of a clip.

    `clips` (K, T) says which of the frames stand where, so that a frame that several clips share is
    given, and resized, once.
    """
    height, width = frames.shape[1:3]
    size = scaled(width, height, side)
    frames = resize(frames, *size)
    places = (0, 1, 2) if crops == 3 else (1,)
    parts = [cut(frames, test_box(*size, crop, place)) for place in places]
    return np.stack([part[:, clip] for clip in clips for part in parts])
