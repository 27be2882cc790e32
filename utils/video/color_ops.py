"""Color operators of RandAugment; their results equal Pillow's pixel by pixel.

Most operators are look-up tables (LUT) of 256 levels, so a sequence of them needs one look-up. A
LUT is uint8 (256,), or (n, 1 or 3, 256) with one table for each frame, or for each of its channels.
"""

from typing import Optional, Union

import cv2
import numpy as np
from PIL import Image

LEVELS = np.arange(256)
IDENTITY = LEVELS.astype(np.uint8)  # the LUT that changes nothing
# Largest error of OpenCV's float32 sums of two weighted levels.
ERROR = 5e-5
DIFFERENCES = np.arange(-255, 256)  # all differences of two levels
SMOOTHING = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def make_level_lut(name: str, *values: float) -> np.ndarray:
    """The LUT of an operator that is the same for all frames."""
    if name == "Invert":
        return 255 - IDENTITY
    (value,) = values
    if name == "PosterizeIncreasing":  # keeps the highest bits of a level
        return IDENTITY & np.uint8(0xFF << max(8 - int(value), 0) & 0xFF)
    if name == "SolarizeIncreasing":  # inverts levels from a threshold on
        return np.where(value > LEVELS, IDENTITY, 255 - IDENTITY)
    if name == "SolarizeAdd":  # adds to levels below 128
        return np.where(LEVELS < 128, np.minimum(LEVELS + value, 255), LEVELS).astype(np.uint8)
    return blend_levels(0, LEVELS, value)  # brightness


def make_auto_contrast_lut(frames: np.ndarray) -> np.ndarray:
    """Stretches the levels of each channel of each frame to the range 0 to 255."""
    n, _, width, _ = frames.shape
    lines = frames.reshape(n, -1, width * 3)  # min and max of whole lines are faster
    low, high = (extreme(lines, axis=1).reshape(n, width, 3) for extreme in (np.min, np.max))
    low = low.min(1).astype(float)[..., None]
    high = high.max(1).astype(float)[..., None]
    scale = 255 / np.maximum(high - low, 1)
    table = np.clip(LEVELS * scale + -low * scale, 0, 255).astype(np.uint8)
    return np.where(high > low, table, IDENTITY)


def make_equalize_lut(frames: np.ndarray) -> np.ndarray:
    """Histogram equalization of each channel of each frame."""
    counts = [
        [cv2.calcHist([frame], [channel], None, [256], [0, 256])[:, 0] for channel in range(3)]
        for frame in frames
    ]
    counts = np.array(counts).astype(np.int64)  # float32 counts are exact up to 2**24 pixels
    highest = 255 - np.argmax(counts[..., ::-1] > 0, axis=-1)[..., None]
    highest_count = np.take_along_axis(counts, highest, -1)
    step = (counts.sum(-1, keepdims=True) - highest_count) // 255
    below = np.cumsum(counts, -1) - counts
    table = np.minimum((step // 2 + below) // np.maximum(step, 1), 255).astype(np.uint8)
    return np.where(step > 0, table, IDENTITY)


def make_contrast_lut(frames: np.ndarray, factor: float) -> np.ndarray:
    """Scales the difference of levels and the mean grey level of each frame by `factor`."""
    pixels = frames.shape[1] * frames.shape[2]
    means = [int(cv2.sumElems(to_grey(frame))[0] / pixels + 0.5) for frame in frames]
    return blend_levels(np.array(means, np.float32)[:, None, None], LEVELS, factor)


def adjust_color(frame: np.ndarray, factor: float, out: np.ndarray) -> None:
    """Scales the difference of a frame and its grey image by `factor`; writes into `out`."""
    blend_frames(
        cv2.cvtColor(to_grey(frame), cv2.COLOR_GRAY2RGB), frame=frame, factor=factor, out=out
    )


def adjust_sharpness(frame: np.ndarray, factor: float, out: np.ndarray) -> None:
    """Scales the difference of a frame and its smoothed image by `factor`; writes into `out`.

    Like Pillow, it does not smooth the border.
    """
    smooth = cv2.filter2D(frame, -1, SMOOTHING)  # sums of thirteenths are never half a level
    smooth[[0, -1]] = frame[[0, -1]]
    smooth[:, [0, -1]] = frame[:, [0, -1]]
    blend_frames(smooth, frame=frame, factor=factor, out=out)


def to_grey(frame: np.ndarray) -> np.ndarray:
    """The grey image (H, W) of a frame (H, W, 3), by Pillow."""
    return np.asarray(Image.fromarray(np.ascontiguousarray(frame)).convert("L"))


def blend_levels(base: Union[float, np.ndarray], levels: np.ndarray, factor: float) -> np.ndarray:
    """base + factor * (levels - base), truncated to uint8; in float32 like Pillow's `blend`."""
    base = np.asarray(base, np.float32)
    levels = np.asarray(levels, np.float32)
    return np.clip(base + np.float32(factor) * (levels - base), 0, 255).astype(np.uint8)


def blend_frames(base: np.ndarray, frame: np.ndarray, factor: float, out: np.ndarray) -> None:
    """`blend_levels` of two frames into `out`.

    OpenCV computes it, unless one of the 511 differences gives a value too close to a whole level.
    """
    factor = float(np.float32(factor))
    gap = np.max(factor * DIFFERENCES % 1)
    if 1 - gap < 2 * ERROR:
        out[...] = blend_levels(base, frame, factor)
        return
    # OpenCV rounds, Pillow truncates: half a level less, but whole levels must not fall below.
    cv2.addWeighted(frame, factor, base, 1 - factor, ERROR - 0.5, dst=out)


def apply_lut(frames: np.ndarray, table: Optional[np.ndarray]) -> np.ndarray:
    """Applies a LUT to frames (n, H, W, 3), contiguous or not; None changes nothing."""
    if table is None:
        return frames
    out = np.empty(frames.shape, np.uint8)
    if table.ndim == 1:
        tables = [table] * len(frames)
    else:  # one table for all channels is twice as fast as one for each
        tables = [rows[0] if len(rows) == 1 else rows.T[None].copy() for rows in table]
    for frame, lut, target in zip(frames, tables, out):
        cv2.LUT(frame, lut, dst=target)
    return out
