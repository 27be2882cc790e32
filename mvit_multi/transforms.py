"""Augmentation of a training clip. Frames are uint8 (n, H, W, 3); views:
`utils/video/transforms.py`.

Clips leave as uint8 (3, T, crop, crop). Source: JunweiLiang/MultiTrain, commit 16723114.
Departures: the source resizes normalised float32 frames; rounding to a level of 255 moves a pixel
by at most half a level. Its noise in erased boxes is normal after normalisation; here it is the
same noise, rounded and cut off where pixels end, at -2 and 2.44 deviations.
"""

from typing import Optional

import numpy as np

from mvit_multi.policy import Policy
from mvit_multi.randaugment import augment, draw_steps
from mvit_multi.sampling import erased_box, random_box
from utils.video.transforms import cut_clips

MEAN, STD = 0.45, 0.225


def train_clip(
    frames: np.ndarray,
    crop: int,
    area: tuple[float, float],
    policy: Optional[Policy],
    erase: float,
    flip: bool,
    rng: np.random.RandomState,
) -> tuple[np.ndarray, bool]:
    """RandAugment, random resized crop, flip, erasing: the clip, and whether it is mirrored."""
    height, width = frames.shape[1:3]
    steps = draw_steps(policy, rng) if policy else []
    box = random_box(width, height, rng.uniform, area)
    frames = augment(frames, steps, box)
    mirrored = flip and rng.uniform() < 0.5
    clip = cut_clips(frames, (crop, crop), [(0, 0, crop, crop)], mirrored)[0]
    box = erased_box(crop, crop, erase, rng.uniform) if erase else None
    if box is not None:
        x, y, w, h = box
        noise = rng.standard_normal((3, len(frames), h, w)) * STD + MEAN
        clip[:, :, y : y + h, x : x + w] = np.rint(np.clip(noise, 0, 1) * 255)
    return clip, mirrored
