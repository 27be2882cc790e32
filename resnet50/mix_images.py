"""Mixes the images of a batch on the device, with the targets of `dataset.py`."""

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from utils.nn.mixing import mix_partners


class MixImages(nn.Cell):
    """Images uint8 (N, 3, H, W) and targets (N, 3 or 7) to normalised float32 mixtures."""

    def __init__(self, normalize: nn.Cell):
        super().__init__(auto_prefix=False)
        self.normalize = normalize

    def construct(self, image: Tensor, target: Tensor) -> Tensor:
        x = self.normalize(image)
        partner = ops.gather(x, target[:, 2].astype(mstype.int32), 0)
        if target.shape[1] == 7:
            return mix_partners(x, partner, target[0, 1], target[0, 3:])
        lam = target[:, 1].reshape(-1, 1, 1, 1)
        return lam * x + (1 - lam) * partner
