"""Mixup and cutmix of a batch with itself, backwards; targets.

A clip's partner is the one that stands as far from the end of the batch. One share, and for cutmix
one box, serves the whole batch, and all devices. Source: JunweiLiang/MultiTrain, commit 16723114.
"""

from typing import NamedTuple

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

NO_BOX = (0, 0, 0, 0)


class Mix(NamedTuple):
    """How a batch is mixed: the share of a clip itself, and cutmix's box (y0, y1, x0, x1)."""

    share: float
    box: tuple[int, int, int, int] = NO_BOX


def draw_mix(
    rng: np.random.RandomState, size: int, mixup: float, cutmix: float, switch: float, prob: float
) -> Mix:
    """One draw for a batch of clips of size x size pixels.

    `mixup` and `cutmix` are the alphas of their Beta distributions, 0 for off; `switch` is the
    chance of cutmix where both are on; `prob` that of any.
    """
    if rng.uniform() >= prob or not (mixup or cutmix):
        return Mix(1.0)
    if cutmix and (not mixup or rng.uniform() < switch):
        share = float(rng.beta(cutmix, cutmix))
        y, x = (int(v) for v in rng.randint(0, size, 2))
        return cutmix_box(share, y, x, size, size)
    return Mix(float(rng.beta(mixup, mixup)))


def cutmix_box(share: float, y: int, x: int, height: int, width: int) -> Mix:
    """The box around (y, x) that takes about 1 - share of the frame, and what share is left."""
    ratio = (1 - share) ** 0.5
    half_h, half_w = int(height * ratio) // 2, int(width * ratio) // 2
    y0, y1 = (int(np.clip(v, 0, height)) for v in (y - half_h, y + half_h))
    x0, x1 = (int(np.clip(v, 0, width)) for v in (x - half_w, x + half_w))
    return Mix(1 - (y1 - y0) * (x1 - x0) / (height * width), (y0, y1, x0, x1))


def target_row(which: int, label: int, share: float, box: tuple = NO_BOX) -> np.ndarray:
    """float32 (7,): data set, label, share of the clip in its mixture, box."""
    return np.array([which, label, share, *box], np.float32)


class MixClips(nn.Cell):
    """Clips uint8 (B, S, 3, T, H, W), S copies of a video, and targets (B, S, 7), to network input.

    That is normalised float32 (B * S, 3, T, H, W), mixed where the targets say so.
    """

    def __init__(self, normalize: nn.Cell, mixes: bool):
        super().__init__(auto_prefix=False)
        self.normalize, self.mixes = normalize, mixes

    def construct(self, clip: Tensor, target: Tensor) -> Tensor:
        x = ops.reshape(clip, (-1, *clip.shape[2:]))
        if not self.mixes:
            return x
        x, row = self.normalize(x), target[0, 0]
        partner, share = ops.flip(x, (0,)), row[2]
        inside = within(x.shape[3], row[3], row[4]).reshape(-1, 1) * within(
            x.shape[4], row[5], row[6]
        )
        boxed = inside.sum() > 0
        weight = ops.where(boxed, 1 - inside, share * ops.ones_like(inside))  # (H, W), of the clip
        weight = ops.broadcast_to(weight, x.shape)
        return weight * x + (1 - weight) * partner


def within(size: int, start: Tensor, end: Tensor) -> Tensor:
    """1 from start to end - 1, else 0: float32 (size,)."""
    place = ops.arange(size).astype(mstype.float32)
    return ops.logical_and(place >= start, place < end).astype(mstype.float32)
