"""Cross entropy with label smoothing in float32, in both common definitions; mixing of a batch.

Mixup (arXiv:1710.09412) and cutmix (arXiv:1905.04899) of a batch; `utils.data.mixing` draws them.
"""

from collections.abc import Sequence

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from utils.nn.loss import Loss, build_class_weights


class SmoothedCrossEntropy(Loss):
    """Scores (N, K) and a target to the mean loss over the batch, a float32 scalar.

    The target is a label int32 (N,), or, with mixup, float32 (N, 3): label, lambda, partner's row
    in the batch (`utils.data.mixing`).

    `others` chooses the smoothed target q, with smoothing s:
    * `excluded` (MindSpore's tutorial): 1 - s for the label, s / (K - 1) for every other class;
    * `included` (PyTorch, NVIDIA): 1 - s + s / K for the label, s / K for every other class.

    With `train.class_weights` w the loss of a row is -sum_k w_k q_k log p_k, and the sum over the
    rows is divided by that of the weights of their labels, of mixed ones by their mean.
    """

    def __init__(
        self, smoothing: float = 0.0, others: str = "excluded", class_weights: Sequence[float] = ()
    ):
        super().__init__()
        self.smoothing = smoothing
        self.excluded = others == "excluded"
        self.class_weights = build_class_weights(class_weights)

    def construct(self, scores: Tensor, target: Tensor) -> Tensor:
        log_p = ops.log_softmax(scores.astype(mstype.float32), -1)
        if self.class_weights is not None:
            log_p = log_p * self.class_weights
        if target.ndim == 1:
            label = partner_label = target
            lam = 1.0
            rows = self.compute_rows(log_p, label)
        else:
            label = target[:, 0].astype(mstype.int32)
            lam = target[:, 1]
            partner_label = ops.gather(label, target[:, 2].astype(mstype.int32), 0)
            rows = lam * self.compute_rows(log_p, label)
            rows = rows + (1 - lam) * self.compute_rows(log_p, partner_label)
        if self.class_weights is None:
            return rows.mean()
        weights = lam * ops.gather(self.class_weights, label, 0)
        weights = weights + (1 - lam) * ops.gather(self.class_weights, partner_label, 0)
        return rows.sum() / weights.sum()

    def compute_rows(self, log_p: Tensor, label: Tensor) -> Tensor:
        """-sum_k q_k log p_k of every row, (N,)."""
        label_loss = -ops.gather_elements(log_p, 1, label.reshape(-1, 1)).reshape(-1)
        if self.smoothing == 0:
            return label_loss
        classes = log_p.shape[1]
        sum_of_losses = -log_p.sum(1)
        if self.excluded:
            other_weight = self.smoothing / (classes - 1)  # of every other class
            return (1 - self.smoothing - other_weight) * label_loss + other_weight * sum_of_losses
        return (1 - self.smoothing) * label_loss + self.smoothing / classes * sum_of_losses


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
