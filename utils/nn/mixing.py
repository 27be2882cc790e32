"""Mixup (arXiv:1710.09412) and cutmix (arXiv:1905.04899) of a batch: what all networks share."""

from typing import NamedTuple

import numpy as np
from mindspore import Tensor, ops
from mindspore import dtype as mstype

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
    probability of cutmix if both are on, `prob` that of any mixing.
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


def mix_partners(x: Tensor, partner: Tensor, lam: Tensor, box: Tensor) -> Tensor:
    """Mixes each sample (N, ..., H, W) with its partner, by cutmix if `box` (4,) has an area."""
    rows = make_interval_mask(x.shape[-2], box[0], box[1]).reshape(-1, 1)
    inside = rows * make_interval_mask(x.shape[-1], box[2], box[3])
    # (H, W): the weights of the sample itself.
    weight = ops.where(inside.sum() > 0, 1 - inside, lam * ops.ones_like(inside))
    weight = ops.broadcast_to(weight, x.shape)
    return weight * x + (1 - weight) * partner


def make_interval_mask(size: int, start: Tensor, end: Tensor) -> Tensor:
    """float32 (size,): 1 from start to end - 1, else 0."""
    position = ops.arange(size).astype(mstype.float32)
    return ops.logical_and(position >= start, position < end).astype(mstype.float32)
