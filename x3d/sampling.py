"""Frame sampling of X3D: the frames of a video that form a clip.

Source: facebookresearch/SlowFast, commit 287ec007 (`datasets/decoder.py`, `datasets/kinetics.py`).
The sampling rule is exact here. The source's readers that decode only a window of the video differ
from it by up to two frames.
"""

import numpy as np


def compute_clip_span(frames: int, stride: int, fps: float, target_fps: float) -> float:
    """The number of source frames that a clip spans, a real number."""
    return max(1.0, frames * stride * fps / target_fps)


def compute_start(relative_start: float, length: int, span: float) -> float:
    """The first frame of a clip, a real number.

    `relative_start`, from 0 to 1, is a position in the range of valid starts of a video of `length`
    frames.
    """
    return relative_start * max(length - span, 0)


def spread_frame_indices(start: float, span: float, frames: int, length: int) -> np.ndarray:
    """`frames` indices at equal distances from start to start + span - 1, both included, int64.

    Computed in float32 and from both ends, like the source: in float64 about one clip in a hundred
    differs by a frame.
    """
    end = np.float32(start + span - 1)
    start = np.float32(start)
    if frames == 1:
        return np.clip(np.array([start]), 0, length - 1).astype(np.int64)
    step = np.float32((end - start) / np.float32(frames - 1))
    i = np.arange(frames, dtype=np.float32)
    spaced = np.where(i < frames // 2, start + i * step, end - (frames - 1 - i) * step)
    return np.clip(spaced.astype(np.float32), 0, length - 1).astype(np.int64)
