"""Mixup (arXiv:1710.09412) and cutmix (arXiv:1905.04899) of a batch: the part of the graph."""

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype


class MixBatch(nn.Cell):
    """Samples uint8 (N, ..., H, W) and targets (N, 3 or 7) to normalised float32 mixtures.

    `utils.data.mixing` explains the targets.
    """

    def __init__(self, normalize: nn.Cell):
        super().__init__(auto_prefix=False)
        self.normalize = normalize

    def construct(self, sample: Tensor, target: Tensor) -> Tensor:
        x = self.normalize(sample)
        partner = ops.gather(x, target[:, 2].astype(mstype.int32), 0)
        if target.shape[1] == 7:
            return mix_partners(x, partner, target[0, 1], target[0, 3:])
        lam = target[:, 1].reshape(-1, *[1] * (x.ndim - 1))
        return lam * x + (1 - lam) * partner


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
