"""Mixup (arXiv:1710.09412) as in NVIDIA's ResNet50 recipe: one weight lambda per batch."""

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype


def mix_targets(label: np.ndarray, alpha: float, rng: np.random.RandomState) -> np.ndarray:
    """Labels (N,) to float32 (N, 4): label, partner's label, lambda, partner's row in the batch.

    Lambda, the weight of the image itself, is drawn from Beta(alpha, alpha); the partners are a
    permutation of the batch.
    """
    partner = rng.permutation(len(label))
    lam = np.full(len(label), rng.beta(alpha, alpha))
    return np.stack([label, label[partner], lam, partner], axis=1).astype(np.float32)


class MixUp(nn.Cell):
    """Images uint8 (N, 3, H, W) and targets (N, 4) to normalised float32 mixtures."""

    def __init__(self, normalize: nn.Cell):
        super().__init__(auto_prefix=False)
        self.normalize = normalize

    def construct(self, image: Tensor, target: Tensor) -> Tensor:
        x = self.normalize(image)
        partner = target[:, 3].astype(mstype.int32)
        lam = target[:, 2].reshape(-1, 1, 1, 1)
        return lam * x + (1 - lam) * ops.gather(x, partner, 0)
