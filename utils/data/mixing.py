"""The draw of mixup (arXiv:1710.09412) and cutmix (arXiv:1905.04899) for a batch."""

import functools
from typing import NamedTuple

import numpy as np

from utils.settings import ImageData

NO_BOX = (0, 0, 0, 0)


class Mix(NamedTuple):
    """How a batch is mixed: the weight `lam` of a sample itself, cutmix's box (y0, y1, x0, x1)."""

    lam: float
    box: tuple[int, int, int, int] = NO_BOX


def draw_mix(rng: np.random.RandomState, size: int, mixup: float, cutmix: float) -> Mix:
    """Draws the mixing of a batch of samples of size x size pixels.

    `mixup` and `cutmix` are the alphas of their Beta distributions (0: off). If both are
    on, each has probability 0.5.
    """
    rng.uniform()  # by which the source decides whether to mix at all: here always
    if not (mixup or cutmix):
        return Mix(1.0)
    if cutmix and (not mixup or rng.uniform() < 0.5):
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


@functools.lru_cache(16)
def draw_partners(data: ImageData, count: int, key: tuple[int, ...]) -> np.ndarray:
    """What follows the label in the targets of a batch: (count, 2), lambda and partner's row.

    With `data.cutmix` they are (count, 6): also the box (y0, y1, x0, x1) of the partner's pixels,
    without area if the batch has mixup. `key`, in a training (seed, step, rank), seeds the draw.

    Lambda, the weight of the sample itself, is drawn from Beta(alpha, alpha), one a batch as in
    the recipes of NVIDIA, torchvision and mmaction2; the partners are a permutation of the batch.
    If mixup and cutmix are both on, each batch has one of them with equal probability.
    """
    rng = np.random.RandomState(key)
    partner = rng.permutation(count)
    mix = draw_mix(rng, size=data.crop, mixup=data.mixup, cutmix=data.cutmix)
    columns = [np.full(count, mix.lam), partner]
    if data.cutmix:
        columns += [np.full(count, edge) for edge in mix.box]
    return np.stack(columns, axis=1)
