"""Augmentation of a training clip: RandAugment, random crop, flip, random erasing.

Input frames are uint8 (n, H, W, 3), clips are uint8 (3, T, crop, crop). The views of evaluation are
in `utils/video/transforms.py`. Source: JunweiLiang/MultiTrain, commit 16723114.
Differences from the source: the source resizes normalised float32 frames; rounding to a level of
255 moves a pixel by at most half a level. Its noise in erased boxes is normal after normalisation;
here the same noise is rounded and limited to the range of pixels, -2 to 2.44 deviations.
"""

from typing import Optional

import numpy as np

from mvit_multi.config import Policy
from mvit_multi.randaugment import apply_operations, draw_operations
from mvit_multi.sampling import draw_crop_box, draw_erase_box, draw_scaled_crop
from utils.video.transforms import cut_clips

MEAN = 0.45
STD = 0.225


def make_train_clip(
    frames: np.ndarray,
    crop: int,
    area: tuple[float, float],
    policy: Optional[Policy],
    erase: float,
    flip: bool,
    rng: np.random.RandomState,
    scales: Optional[tuple[int, int]] = None,
) -> tuple[np.ndarray, bool]:
    """Augments all frames alike. Returns the clip, and whether it is mirrored.

    `area` is the range of the crop, as fractions of the frame; `erase` the probability of erasing.
    With `scales` the crop is a square of a frame whose short side lies in this range.
    """
    height, width = frames.shape[1:3]
    operations = draw_operations(policy, rng) if policy else []
    if scales:
        size, box = draw_scaled_crop(
            width, height=height, scales=scales, crop=crop, draw=rng.uniform
        )
        frames = apply_operations(frames, operations)
    else:
        region = draw_crop_box(width, height=height, draw=rng.uniform, area=area)
        frames = apply_operations(frames, operations, region)
        size = (crop, crop)
        box = (0, 0, crop, crop)
    mirrored = flip and rng.uniform() < 0.5
    clip = cut_clips(frames, size=size, boxes=[box], mirrored=mirrored)[0]
    box = draw_erase_box(crop, height=crop, prob=erase, draw=rng.uniform) if erase else None
    if box is not None:
        x, y, w, h = box
        noise = rng.standard_normal((3, len(frames), h, w)) * STD + MEAN
        clip[:, :, y : y + h, x : x + w] = np.rint(np.clip(noise, 0, 1) * 255)
    return clip, mirrored
