"""Training transform of X3D: random short side, random square crop, random flip.

Input frames are uint8 (n, H, W, 3); clips are uint8 (3, T, crop, crop). The views of evaluation are
in `utils/video/transforms.py`. Source: facebookresearch/SlowFast, commit 287ec007
(`datasets/transform.py`).
"""

from typing import Union

import numpy as np

from utils.video.reader import Clip, transform_frames
from utils.video.transforms import Box, cut_clips, scale_short_side


def make_train_clip(
    frames: Union[np.ndarray, Clip],
    scales: tuple[int, int],
    crop: int,
    flip: bool,
    rng: np.random.RandomState,
) -> tuple[np.ndarray, bool]:
    """Resizes, crops and flips all frames alike. Returns the clip, and whether it is mirrored."""
    height, width = frames.shape[1:3]
    size, box, mirrored = draw_scale_crop_flip(width, height, *scales, crop, rng)
    mirrored = flip and mirrored

    def cut(part: np.ndarray) -> np.ndarray:
        return cut_clips(part, size=size, boxes=[box], mirrored=mirrored)[0]

    return transform_frames(frames, cut, axis=1), mirrored


def draw_scale_crop_flip(
    width: int, height: int, low: int, high: int, crop: int, rng: np.random.RandomState
) -> tuple[tuple[int, int], Box, bool]:
    """Draws a short side from `low` to `high`, a crop box and a flip.

    Returns ((scaled width, scaled height), box, flipped). The last possible offset is never drawn,
    because the upper bound of the source is exclusive.
    """
    size = int(round(rng.uniform(low, high)))
    scaled_w, scaled_h = scale_short_side(width, height, size)
    y = int(rng.randint(0, scaled_h - crop)) if scaled_h > crop else 0
    x = int(rng.randint(0, scaled_w - crop)) if scaled_w > crop else 0
    return (scaled_w, scaled_h), (x, y, crop, crop), bool(rng.uniform() < 0.5)
