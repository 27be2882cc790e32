"""Mixup or cutmix with one weight lambda per batch, as in NVIDIA's and torchvision's recipes."""

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from resnet50.config import Data
from utils.nn.mixing import draw_mix, mix_partners


def mix_targets(label: np.ndarray, data: Data, rng: np.random.RandomState) -> np.ndarray:
    """Labels (N,) to float32 (N, 4): label, partner's label, lambda, partner's row in the batch.

    Lambda, the weight of the image itself, is drawn from Beta(alpha, alpha); the partners are a
    permutation of the batch. With `data.cutmix` the targets are (N, 8): also the box (y0, y1, x0,
    x1) of the partner's pixels, without area if the batch has mixup. If both are on, each batch has
    one of them with equal probability.
    """
    partner = rng.permutation(len(label))
    mix = draw_mix(rng, data.crop, data.mixup, data.cutmix, switch=0.5, prob=1.0)
    columns = [label, label[partner], np.full(len(label), mix.lam), partner]
    if data.cutmix:
        columns += [np.full(len(label), edge) for edge in mix.box]
    return np.stack(columns, axis=1).astype(np.float32)


class MixImages(nn.Cell):
    """Images uint8 (N, 3, H, W) and targets (N, 4 or 8) to normalised float32 mixtures."""

    def __init__(self, normalize: nn.Cell):
        super().__init__(auto_prefix=False)
        self.normalize = normalize

    def construct(self, image: Tensor, target: Tensor) -> Tensor:
        x = self.normalize(image)
        partner = ops.gather(x, target[:, 3].astype(mstype.int32), 0)
        if target.shape[1] == 8:
            return mix_partners(x, partner, target[0, 2], target[0, 4:])
        lam = target[:, 2].reshape(-1, 1, 1, 1)
        return lam * x + (1 - lam) * partner
