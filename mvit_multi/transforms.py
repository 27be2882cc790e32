"""Augmentation of a training clip, and the views of a test. Frames are uint8 (n, H, W, 3).

Clips leave as uint8 (3, T, crop, crop). Source: JunweiLiang/MultiTrain, commit 16723114.
Departures: the source resizes normalised float32 frames; rounding to a level of 255 moves a pixel
by at most half a level. Its noise in erased boxes is normal after normalisation; here it is the
same noise, rounded and cut off where pixels end, at -2 and 2.44 deviations.
"""

import math
from typing import Optional

import cv2
import numpy as np

from mvit_multi.policy import Policy
from mvit_multi.randaugment import rand_augment
from mvit_multi.sampling import erased_box, random_box
from utils.video import Box

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
    frames = rand_augment(frames, policy, rng) if policy else frames
    height, width = frames.shape[1:3]
    clip = resized(frames, random_box(width, height, rng.uniform, area), (crop, crop))
    mirrored = flip and rng.uniform() < 0.5
    clip = clip[:, :, ::-1] if mirrored else clip
    clip = np.ascontiguousarray(clip.transpose(3, 0, 1, 2))
    box = erased_box(crop, crop, erase, rng.uniform) if erase else None
    if box is not None:
        x, y, w, h = box
        noise = rng.standard_normal((3, len(frames), h, w)) * STD + MEAN
        clip[:, :, y : y + h, x : x + w] = np.rint(np.clip(noise, 0, 1) * 255)
    return clip, mirrored


def resized(frames: np.ndarray, box: Box, size: tuple[int, int]) -> np.ndarray:
    """A box of all frames at a size (width, height): bilinear, half-pixel centres, rounded."""
    x, y, w, h = box
    out = np.empty((len(frames), size[1], size[0], 3), np.uint8)
    for frame, target in zip(frames[:, y : y + h, x : x + w], out):
        if (w, h) == size:
            target[...] = frame
        else:
            scaled = cv2.resize(frame.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
            target[...] = np.rint(scaled)
    return out


def test_views(
    frames: np.ndarray, clips: np.ndarray, side: int, crop: int, crops: int
) -> np.ndarray:
    """All views of a video: uint8 (clips * crops, 3, T, crop, crop), crop after crop of a clip.

    `clips` (K, T) says which of the frames stand where.
    """
    height, width = frames.shape[1:3]
    size = scaled_size(width, height, side)
    frames = resized(frames, (0, 0, width, height), size).transpose(3, 0, 1, 2)
    parts = []
    for place in (0, 1, 2) if crops == 3 else (1,):
        x, y, w, h = test_box(*size, crop, place)
        parts.append(frames[:, :, y : y + h, x : x + w])
    return np.stack([part[:, clip] for clip in clips for part in parts])


def scaled_size(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height at which the short side is `side`; the long one is rounded down."""
    short = min(width, height)
    if short == side:
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
