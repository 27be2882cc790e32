"""Augmentation of a training clip: RandAugment, random crop, flip, random erasing.

Input frames are uint8 (n, H, W, 3), clips are uint8 (3, T, crop, crop). The views of evaluation are
in `utils/video/transforms.py`. Source: JunweiLiang/MultiTrain, commit 16723114.
Differences from the source: the source resizes normalised float32 frames; rounding to a level of
255 moves a pixel by at most half a level.
"""

from typing import NamedTuple, Optional, Union

import numpy as np

from mvit_multi.config import Data
from mvit_multi.sampling import draw_crop_box, draw_scaled_crop
from utils.video.augment import draw_erase_box, draw_noise, parse_policy
from utils.video.randaugment import Operation, apply_operations, draw_operations
from utils.video.reader import Clip, transform_frames
from utils.video.transforms import Box, cut_clips


class Augmentation(NamedTuple):
    """What is done to a clip: RandAugment, then a box of its resized frames, then erasing.

    `region` is a box of the frames before they are resized. `noise` (3, T, h, w) fills `erased`.
    """

    operations: list[Operation]
    region: Optional[Box]
    size: tuple[int, int]
    box: Box
    mirrored: bool
    erased: Optional[Box]
    noise: Optional[np.ndarray]


def make_train_clips(
    frames: Union[np.ndarray, Clip], data: Data, flip: bool, rng: np.random.RandomState
) -> tuple[np.ndarray, list[bool]]:
    """Clips (`data.repeated_aug`, 3, T, crop, crop), and whether each one is mirrored.

    A clip augments all frames alike. With `data.scales` the crop is a square of a frame whose short
    side lies in this range.
    """
    augmentations = [
        draw_augmentation(frames.shape, data, flip=flip, rng=rng) for _ in range(data.repeated_aug)
    ]

    def augment(part: np.ndarray) -> np.ndarray:
        """The clips of frames (n, H, W, 3), before erasing."""
        clips = []
        for it in augmentations:
            changed = apply_operations(part, it.operations, it.region)
            clips += cut_clips(changed, size=it.size, boxes=[it.box], mirrored=it.mirrored)
        return np.stack(clips)

    clips = transform_frames(frames, augment, axis=2)
    for augmentation, clip in zip(augmentations, clips):
        if augmentation.erased is not None:
            x, y, w, h = augmentation.erased
            clip[:, :, y : y + h, x : x + w] = augmentation.noise
    return clips, [augmentation.mirrored for augmentation in augmentations]


def draw_augmentation(
    shape: tuple[int, ...], data: Data, flip: bool, rng: np.random.RandomState
) -> Augmentation:
    """Draws the augmentation of frames of `shape` (T, H, W, 3); see `make_train_clips`."""
    count, height, width, _ = shape
    crop = data.crop
    policy = parse_policy(data.rand_augment) if data.rand_augment else None
    operations = draw_operations(policy, rng) if policy else []
    region = None
    size = (crop, crop)
    box = (0, 0, crop, crop)
    if data.scales:
        size, box = draw_scaled_crop(
            width, height=height, scales=data.scales, crop=crop, draw=rng.uniform
        )
    else:
        region = draw_crop_box(width, height=height, draw=rng.uniform, area=data.area)
    mirrored = flip and rng.uniform() < 0.5
    erased = None
    noise = None
    if data.erase:
        erased = draw_erase_box(crop, height=crop, prob=data.erase, draw=rng.uniform)
    if erased is not None:
        _, _, w, h = erased
        noise = draw_noise((3, count, h, w), rng)
    return Augmentation(operations, region, size, box, mirrored, erased, noise)
