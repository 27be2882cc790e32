"""Mixup (arXiv:1710.09412) and cutmix (arXiv:1905.04899) of a batch: the part of the graph."""

from mindspore import Tensor, ops
from mindspore import dtype as mstype


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
