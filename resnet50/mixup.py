"""Mixup (arXiv:1710.09412) as NVIDIA's ResNet50 recipe has it: one share per batch."""

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype


def mix_targets(label: np.ndarray, alpha: float, rng: np.random.RandomState) -> np.ndarray:
    """Labels (N,) to float32 (N, 4): label, partner's label, share of the first, partner's place.

    The share comes from Beta(alpha, alpha), the partners from a permutation of the batch.
    """
    partner = rng.permutation(len(label))
    fraction = np.full(len(label), rng.beta(alpha, alpha))
    return np.stack([label, label[partner], fraction, partner], axis=1).astype(np.float32)


class MixUp(nn.Cell):
    """Images uint8 (N, 3, H, W) and targets (N, 4) to normalised float32 mixtures."""

    def __init__(self, normalize: nn.Cell):
        super().__init__(auto_prefix=False)
        self.normalize = normalize

    def construct(self, image: Tensor, target: Tensor) -> Tensor:
        x = self.normalize(image)
        partner = target[:, 3].astype(mstype.int32)
        fraction = target[:, 2].reshape(-1, 1, 1, 1)
        return fraction * x + (1 - fraction) * ops.gather(x, partner, 0)
