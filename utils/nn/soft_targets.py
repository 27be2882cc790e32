"""Cross entropy with label smoothing in float32, in both common definitions, also for mixup."""

from collections.abc import Sequence
from typing import Union

from mindspore import Tensor, ops
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
            return self.take_mean(self.compute_rows(log_p, target), target, target, 1.0)
        label = target[:, 0].astype(mstype.int32)
        lam = target[:, 1]
        partner_label = ops.gather(label, target[:, 2].astype(mstype.int32), 0)
        mixed = lam * self.compute_rows(log_p, label)
        mixed = mixed + (1 - lam) * self.compute_rows(log_p, partner_label)
        return self.take_mean(mixed, label, partner_label, lam)

    def take_mean(
        self, rows: Tensor, label: Tensor, partner_label: Tensor, lam: Union[float, Tensor]
    ) -> Tensor:
        """The mean of the rows' losses (N,), with class weights divided by those of the labels."""
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
