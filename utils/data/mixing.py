"""The draw of mixup (arXiv:1710.09412) and cutmix (arXiv:1905.04899) for a batch."""

from typing import NamedTuple

import numpy as np

NO_BOX = (0, 0, 0, 0)


class Mix(NamedTuple):
    """How a batch is mixed: the weight `lam` of a sample itself, cutmix's box (y0, y1, x0, x1)."""

    lam: float
    box: tuple[int, int, int, int] = NO_BOX


def draw_mix(
    rng: np.random.RandomState, size: int, mixup: float, cutmix: float, switch: float, prob: float
) -> Mix:
    """Draws the mixing of a batch of samples of size x size pixels.

    `mixup` and `cutmix` are the alphas of their Beta distributions (0: off). `switch` is the
    probability of cutmix if both are on, `prob` of any mixing.
    """
    if rng.uniform() >= prob or not (mixup or cutmix):
        return Mix(1.0)
    if cutmix and (not mixup or rng.uniform() < switch):
        lam = float(rng.beta(cutmix, cutmix))
        y, x = (int(v) for v in rng.randint(0, size, 2))
        return make_cutmix(lam, y=y, x=x, height=size, width=size)
    return Mix(float(rng.beta(mixup, mixup)))


def make_cutmix(lam: float, y: int, x: int, height: int, width: int) -> Mix:
    """The box around (y, x) that covers about 1 - lam of the frame, and the exact lambda."""
    ratio = (1 - lam) ** 0.5
    half_h = int(height * ratio) // 2
    half_w = int(width * ratio) // 2
    y0, y1 = (int(np.clip(v, 0, height)) for v in (y - half_h, y + half_h))
    x0, x1 = (int(np.clip(v, 0, width)) for v in (x - half_w, x + half_w))
    return Mix(1 - (y1 - y0) * (x1 - x0) / (height * width), (y0, y1, x0, x1))
