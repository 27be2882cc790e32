"""From the frames of a video to a training clip: short side to a size, a square crop, a flip.

Frames come as uint8 (n, H, W, 3); clips leave as uint8 (3, T, crop, crop). Views of tests:
`utils/video/transforms.py`.
"""

import numpy as np

from utils.video.transforms import cut_clips
from x3d.sampling import jitter


def train_clip(
    frames: np.ndarray, scales: tuple[int, int], crop: int, flip: bool, rng: np.random.RandomState
) -> tuple[np.ndarray, bool]:
    """One draw of size, place and flip for all frames: the clip, and whether it is mirrored."""
    height, width = frames.shape[1:3]
    size, box, mirrored = jitter(width, height, *scales, crop, rng)
    mirrored = flip and mirrored
    return cut_clips(frames, size, [box], mirrored)[0], mirrored
