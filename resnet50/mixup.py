"""Mixup or cutmix with one weight lambda per batch, as in NVIDIA's and torchvision's recipes."""

import numpy as np

from resnet50.config import Data
from utils.data.mixing import draw_mix


def mix_targets(label: np.ndarray, data: Data, rng: np.random.RandomState) -> np.ndarray:
    """Labels (N,) to float32 (N, 3): label, lambda, partner's row in the batch.

    With `data.cutmix` the targets are (N, 7): also the box (y0, y1, x0, x1) of the partner's
    pixels, without area if the batch has mixup.
    """
    return np.column_stack([label, draw_partners(len(label), data, rng)]).astype(np.float32)


def draw_partners(count: int, data: Data, rng: np.random.RandomState) -> np.ndarray:
    """Columns 1 and following of the targets of a batch of `count` images.

    Lambda, the weight of the image itself, is drawn from Beta(alpha, alpha); the partners are a
    permutation of the batch. If mixup and cutmix are both on, each batch has one of them with equal
    probability.
    """
    partner = rng.permutation(count)
    mix = draw_mix(rng, size=data.crop, mixup=data.mixup, cutmix=data.cutmix, switch=0.5, prob=1.0)
    columns = [np.full(count, mix.lam), partner]
    if data.cutmix:
        columns += [np.full(count, edge) for edge in mix.box]
    return np.stack(columns, axis=1)
