"""Augmentation of the cropped frames of a clip: RandAugment, then random erasing.

All frames of a clip are augmented alike. Source of erasing: JunweiLiang/MultiTrain, commit
16723114. Its noise is normal after normalisation; here the same noise is rounded and limited to the
range of pixels, -2 to 2.44 deviations.
"""

import math
import re
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

import numpy as np

if TYPE_CHECKING:
    from utils.video.transforms import Box

Draw = Callable[[], float]  # returns the next number in [0, 1)
# Fraction of the frame, lowest aspect ratio
ERASED = (0.02, 1 / 3)
ERASED_ASPECT = 0.3
# Of noise, as fractions of the highest level
MEAN = 0.45
STD = 0.225


class Policy(NamedTuple):
    """A RandAugment policy.

    `operators` operators are drawn for each clip, with magnitudes from
    normal(`magnitude`, `deviation`), clipped to 0 to 10.
    """

    magnitude: float
    operators: int
    deviation: float


def parse_policy(text: str) -> Policy:
    """Parses a policy like `rand-m7-n4-mstd0.5-inc1`. Raises ValueError for any other form."""
    match = re.fullmatch(r"rand-m([\d.]+)-n(\d+)(?:-mstd([\d.]+))?-inc1", text)
    if match is None:
        raise ValueError(f"data.rand_augment: {text} is not of the form rand-m7-n4-mstd0.5-inc1")
    return Policy(float(match[1]), int(match[2]), float(match[3] or 0))


def augment_frames(
    frames: np.ndarray, policy: str, erase: float, rng: np.random.RandomState
) -> np.ndarray:
    """Augments RGB frames uint8 (n, H, W, 3); the input stays as it is.

    `policy` is `data.rand_augment`, `erase` the probability of erasing a box.
    """
    frames = np.array(frames, order="C")
    if policy:
        # Here: it loads OpenCV, Pillow and SciPy, and the settings import this module.
        from utils.video.randaugment import apply_operations, draw_operations

        frames = apply_operations(frames, draw_operations(parse_policy(policy), rng))
    count, height, width, channels = frames.shape
    erased = draw_erase_box(width, height=height, prob=erase, draw=rng.uniform)
    if erased is not None:
        x, y, w, h = erased
        frames[:, y : y + h, x : x + w] = draw_noise((count, h, w, channels), rng)
    return frames


def draw_erase_box(width: int, height: int, prob: float, draw: Draw) -> Optional["Box"]:
    """A box to erase with probability `prob`, else None; it is smaller than the frame."""
    if draw() > prob:
        return None
    for _ in range(100):
        target_area = draw_between(draw, *ERASED) * width * height
        ratio = math.exp(draw_between(draw, math.log(ERASED_ASPECT), math.log(1 / ERASED_ASPECT)))
        h = round(math.sqrt(target_area * ratio))
        w = round(math.sqrt(target_area / ratio))
        if w < width and h < height:
            y = draw_integer(draw, 0, height - h)
            x = draw_integer(draw, 0, width - w)
            return x, y, w, h
    return None


def draw_noise(shape: tuple[int, ...], rng: np.random.RandomState) -> np.ndarray:
    """The uint8 pixels of an erased box."""
    levels = rng.standard_normal(shape) * STD + MEAN
    return np.rint(np.clip(levels, 0, 1) * 255).astype(np.uint8)


def draw_integer(draw: Draw, low: int, high: int) -> int:
    """A uniform integer from low to high, both included."""
    return low + int(draw() * (high - low + 1))


def draw_between(draw: Draw, low: float, high: float) -> float:
    """A uniform real number from low to high."""
    return low + draw() * (high - low)
