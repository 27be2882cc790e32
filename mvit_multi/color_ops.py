"""RandAugment's operators on levels and colours, to Pillow's very pixels.

Most are tables of 256 levels, so that operators in a row are one table and one look-up. A table is
uint8 (256,), or (n, 1 or 3, 256) where each frame, or each channel of it, has its own.
"""

from typing import Optional

import cv2
import numpy as np
from PIL import Image

LEVELS = np.arange(256)
EVEN = LEVELS.astype(np.uint8)  # the table that changes nothing
# OpenCV's sums of two weighted levels, in float32, are less than this away from the exact ones.
ERROR = 5e-5
DIFFERENCES = np.arange(-255, 256)  # of two levels
SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def invert() -> np.ndarray:
    return 255 - EVEN


def posterize(bits: int) -> np.ndarray:
    return EVEN & np.uint8(0xFF << max(8 - bits, 0) & 0xFF)


def solarize(threshold: int) -> np.ndarray:
    """Inverts what is as bright as the threshold."""
    return np.where(threshold > LEVELS, EVEN, 255 - EVEN)


def solarize_add(value: int, threshold: int = 128) -> np.ndarray:
    """Brightens what is darker than the threshold."""
    return np.where(threshold > LEVELS, np.minimum(LEVELS + value, 255), LEVELS).astype(np.uint8)


def brightness(factor: float) -> np.ndarray:
    return mixed(np.float32(0), LEVELS, factor)


def auto_contrast(frames: np.ndarray) -> np.ndarray:
    """Spreads the levels of each channel of each frame over all 256."""
    n, _, width, _ = frames.shape
    lines = frames.reshape(n, -1, width * 3)  # min and max along whole lines are many times faster
    low, high = (extreme(lines, axis=1).reshape(n, width, 3) for extreme in (np.min, np.max))
    low, high = low.min(1).astype(float)[..., None], high.max(1).astype(float)[..., None]
    scale = 255 / np.maximum(high - low, 1)
    table = np.clip(LEVELS * scale + -low * scale, 0, 255).astype(np.uint8)
    return np.where(high > low, table, EVEN)


def equalize(frames: np.ndarray) -> np.ndarray:
    """Makes the levels of each channel of each frame about equally frequent."""
    counts = [
        [cv2.calcHist([frame], [channel], None, [256], [0, 256])[:, 0] for channel in range(3)]
        for frame in frames
    ]
    counts = np.array(counts).astype(np.int64)  # float32 counts are exact up to 2**24 pixels
    highest = 255 - np.argmax(counts[..., ::-1] > 0, axis=-1)[..., None]
    last = np.take_along_axis(counts, highest, -1)
    step = (counts.sum(-1, keepdims=True) - last) // 255
    below = np.cumsum(counts, -1) - counts
    table = np.minimum((step // 2 + below) // np.maximum(step, 1), 255).astype(np.uint8)
    return np.where(step > 0, table, EVEN)


def contrast(frames: np.ndarray, factor: float) -> np.ndarray:
    """Moves the levels of each frame away from its mean grey, or towards it."""
    pixels = frames.shape[1] * frames.shape[2]
    means = [int(cv2.sumElems(grey(frame))[0] / pixels + 0.5) for frame in frames]
    return mixed(np.float32(means)[:, None, None], LEVELS, factor)


def color(frame: np.ndarray, factor: float, out: np.ndarray) -> None:
    """Moves a frame's colours away from grey, or towards it."""
    mix(cv2.cvtColor(grey(frame), cv2.COLOR_GRAY2RGB), frame, factor, out)


def sharpness(frame: np.ndarray, factor: float, out: np.ndarray) -> None:
    """Moves a frame away from a smoothed one, or towards it; Pillow does not smooth the edges."""
    smooth = cv2.filter2D(frame, -1, SMOOTH)  # thirteenths: no sum lies between two levels
    smooth[[0, -1]], smooth[:, [0, -1]] = frame[[0, -1]], frame[:, [0, -1]]
    mix(smooth, frame, factor, out)


def grey(frame: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(np.ascontiguousarray(frame)).convert("L"))


def mixed(base: np.ndarray, levels: np.ndarray, factor: float) -> np.ndarray:
    """base + factor * (levels - base) cut to uint8, in float32 as Pillow's `blend` does it."""
    base, levels = np.asarray(base, np.float32), np.asarray(levels, np.float32)
    return np.clip(base + np.float32(factor) * (levels - base), 0, 255).astype(np.uint8)


def mix(base: np.ndarray, frame: np.ndarray, factor: float, out: np.ndarray) -> None:
    """`mixed` into `out`, by OpenCV unless one of the 511 differences comes out too close."""
    factor = float(np.float32(factor))
    gap = np.max(factor * DIFFERENCES % 1)
    if 1 - gap < 2 * ERROR:
        out[...] = mixed(base, frame, factor)
        return
    # OpenCV rounds where Pillow cuts: half a level less, but whole levels must not fall below.
    cv2.addWeighted(frame, factor, base, 1 - factor, ERROR - 0.5, dst=out)


def looked_up(frames: np.ndarray, table: Optional[np.ndarray]) -> np.ndarray:
    """Frames (n, H, W, 3), contiguous or not, through a table; None changes nothing."""
    if table is None:
        return frames
    out = np.empty(frames.shape, np.uint8)
    if table.ndim == 1:
        tables = [table] * len(frames)
    else:  # one channel's table serves all, at twice the speed of one for each
        tables = [own[0] if len(own) == 1 else own.T[None].copy() for own in table]
    for frame, own, target in zip(frames, tables, out):
        cv2.LUT(frame, own, dst=target)
    return out
