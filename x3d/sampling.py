"""Which frames of a video become a clip, and where the crops lie.

Source: facebookresearch/SlowFast, commit 287ec007 (`datasets/decoder.py`, `datasets/kinetics.py`,
`datasets/transform.py`). The rule is exact: the source's readers of a window only are up to a
frame or two off it (`selective_indices` reproduces the one of September 2021, for tests).
"""

import numpy as np

from utils.video.decoders import Box
from utils.video.transforms import scaled


def clip_size(frames: int, stride: int, fps: float, target_fps: float) -> float:
    """Source frames that a clip spans."""
    return max(1.0, frames * stride * fps / target_fps)


def start_at(share: float, length: int, size: float) -> float:
    """The first frame, a real number; `share` is 0 to 1 of the room there is."""
    return share * max(length - size, 0)


def indices(start: float, size: float, frames: int, length: int) -> np.ndarray:
    """`frames` frame numbers evenly from start to start + size - 1, both counted, int64.

    In float32 and from both ends, as the source's spacing is: in float64 about one clip in a
    hundred differs by a frame.
    """
    end = np.float32(start + size - 1)
    start = np.float32(start)
    if frames == 1:
        return np.clip(np.array([start]), 0, length - 1).astype(np.int64)
    step = np.float32((end - start) / np.float32(frames - 1))
    i = np.arange(frames, dtype=np.float32)
    spaced = np.where(i < frames // 2, start + i * step, end - (frames - 1 - i) * step)
    return np.clip(spaced.astype(np.float32), 0, length - 1).astype(np.int64)


def jitter(
    width: int, height: int, low: int, high: int, crop: int, rng: np.random.RandomState
) -> tuple[tuple[int, int], Box, bool]:
    """A random short side, crop and flip: ((scaled width, scaled height), box, flipped).

    The last possible offset is never drawn: the source's bound is exclusive.
    """
    size = int(round(rng.uniform(low, high)))
    scaled_w, scaled_h = scaled(width, height, size)
    y = int(rng.randint(0, scaled_h - crop)) if scaled_h > crop else 0
    x = int(rng.randint(0, scaled_w - crop)) if scaled_w > crop else 0
    return (scaled_w, scaled_h), (x, y, crop, crop), bool(rng.uniform() < 0.5)


def selective_indices(
    start: float, size: float, frames: int, length: int, ticks: int
) -> np.ndarray:
    """The clip of the source's PyAV reader of September 2021, which decodes a window only.

    It keeps the frames whose time stamps (`ticks` a frame) lie between those of start and end, and
    the next one, and spaces the clip over what it kept.
    """
    first, last = int(start * ticks), int((start + size - 1) * ticks)
    inside = [i for i in range(length) if first <= i * ticks <= last]
    kept = np.array([*inside, *([inside[-1] + 1] if inside[-1] + 1 < length else [])])
    return kept[indices(0.0, size, frames, len(kept))]
