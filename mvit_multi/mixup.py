"""Mixup and cutmix of a batch with the reversed batch; rows of the targets.

Clip i of N is mixed with clip N - 1 - i. One lambda, and for cutmix one box, is used for the whole
batch on all devices. Source: JunweiLiang/MultiTrain, commit 16723114.
"""

from typing import NamedTuple

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

NO_BOX = (0, 0, 0, 0)


class Mix(NamedTuple):
    """How a batch is mixed: the weight `lam` of a clip itself, cutmix's box (y0, y1, x0, x1)."""

    lam: float
    box: tuple[int, int, int, int] = NO_BOX


def draw_mix(
    rng: np.random.RandomState, size: int, mixup: float, cutmix: float, switch: float, prob: float
) -> Mix:
    """Draws the mixing of a batch of clips of size x size pixels.

    `mixup` and `cutmix` are the alphas of their Beta distributions (0: off). `switch` is the
    probability of cutmix if both are on, `prob` that of any mixing.
    """
    if rng.uniform() >= prob or not (mixup or cutmix):
        return Mix(1.0)
    if cutmix and (not mixup or rng.uniform() < switch):
        lam = float(rng.beta(cutmix, cutmix))
        y, x = (int(v) for v in rng.randint(0, size, 2))
        return make_cutmix(lam, y, x, size, size)
    return Mix(float(rng.beta(mixup, mixup)))


def make_cutmix(lam: float, y: int, x: int, height: int, width: int) -> Mix:
    """The box around (y, x) that covers about 1 - lam of the frame, and the exact lambda."""
    ratio = (1 - lam) ** 0.5
    half_h, half_w = int(height * ratio) // 2, int(width * ratio) // 2
    y0, y1 = (int(np.clip(v, 0, height)) for v in (y - half_h, y + half_h))
    x0, x1 = (int(np.clip(v, 0, width)) for v in (x - half_w, x + half_w))
    return Mix(1 - (y1 - y0) * (x1 - x0) / (height * width), (y0, y1, x0, x1))


def build_target_row(dataset_index: int, label: int, lam: float, box: tuple = NO_BOX) -> np.ndarray:
    """A target, float32 (7,): data set index, label, lambda, box (y0, y1, x0, x1)."""
    return np.array([dataset_index, label, lam, *box], np.float32)


class MixClips(nn.Cell):
    """Clips uint8 (B, S, 3, T, H, W), S clips of a video, and targets (B, S, 7), to network input.

    The result is float32 (B * S, 3, T, H, W), normalised, and mixed as the targets say. Without
    `mixes` clips stay uint8 and the network normalises them.
    """

    def __init__(self, normalize: nn.Cell, mixes: bool):
        super().__init__(auto_prefix=False)
        self.normalize, self.mixes = normalize, mixes

    def construct(self, clip: Tensor, target: Tensor) -> Tensor:
        x = ops.reshape(clip, (-1, *clip.shape[2:]))
        if not self.mixes:
            return x
        x, row = self.normalize(x), target[0, 0]
        partner, lam = ops.flip(x, (0,)), row[2]
        rows = make_interval_mask(x.shape[3], row[3], row[4]).reshape(-1, 1)
        inside = rows * make_interval_mask(x.shape[4], row[5], row[6])
        # (H, W): the weights of the clip itself.
        weight = ops.where(inside.sum() > 0, 1 - inside, lam * ops.ones_like(inside))
        weight = ops.broadcast_to(weight, x.shape)
        return weight * x + (1 - weight) * partner


def make_interval_mask(size: int, start: Tensor, end: Tensor) -> Tensor:
    """float32 (size,): 1 from start to end - 1, else 0."""
    position = ops.arange(size).astype(mstype.float32)
    return ops.logical_and(position >= start, position < end).astype(mstype.float32)
