"""Cross entropy with label smoothing in float32, in both common definitions, also for mixup."""

from mindspore import Tensor, ops
from mindspore import dtype as mstype

from utils.nn.loss import Loss


class SmoothedCrossEntropy(Loss):
    """Scores (N, K) and a target to the mean loss over the batch, a float32 scalar.

    The target is a label int32 (N,), or, with mixup, float32 (N, 3): label, lambda, partner's row
    in the batch (`mixup.py`).

    `others` chooses the smoothed target q, with smoothing s:
    * `excluded` (MindSpore's tutorial): 1 - s for the label, s / (K - 1) for every other class;
    * `included` (PyTorch, NVIDIA): 1 - s + s / K for the label, s / K for every other class.
    """

    def __init__(self, smoothing: float = 0.0, others: str = "excluded"):
        super().__init__()
        self.smoothing = smoothing
        self.excluded = others == "excluded"

    def construct(self, scores: Tensor, target: Tensor) -> Tensor:
        log_p = ops.log_softmax(scores.astype(mstype.float32), -1)
        if target.ndim == 1:
            return self.compute_rows(log_p, target).mean()
        label = target[:, 0]
        lam = target[:, 1]
        partner_label = ops.gather(label, target[:, 2].astype(mstype.int32), 0)
        mixed = lam * self.compute_rows(log_p, label.astype(mstype.int32))
        mixed = mixed + (1 - lam) * self.compute_rows(log_p, partner_label.astype(mstype.int32))
        return mixed.mean()

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
