"""Label-smoothed cross entropy in float32, in both definitions that are in use, and for mixed
images.
"""

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype


class SmoothedCrossEntropy(nn.Cell):
    """Scores (N, K) and a target to one float32 number, the mean over the batch.

    The target is a label int32 (N,), or, for mixed images, float32 (N, 4): label, the partner's
    label, the share of the first image, the partner's place in the batch.

    `others` says what the smoothed target q is, with smoothing s:
    * `excluded` (MindSpore's tutorial): 1 - s for the label, s / (K - 1) for each other class;
    * `included` (PyTorch, NVIDIA): 1 - s + s / K for the label, s / K for each other class.
    """

    def __init__(self, smoothing: float = 0.0, others: str = "excluded"):
        super().__init__()
        self.smoothing, self.excluded = smoothing, others == "excluded"

    def construct(self, scores: Tensor, target: Tensor) -> Tensor:
        log_p = ops.log_softmax(scores.astype(mstype.float32), -1)
        if target.ndim == 1:
            return self.loss(log_p, target).mean()
        first, second, fraction = target[:, 0], target[:, 1], target[:, 2]
        mixed = fraction * self.loss(log_p, first.astype(mstype.int32))
        mixed = mixed + (1 - fraction) * self.loss(log_p, second.astype(mstype.int32))
        return mixed.mean()

    def loss(self, log_p: Tensor, label: Tensor) -> Tensor:
        """-sum_k q_k log p_k of every row, (N,)."""
        of_label = -ops.gather_elements(log_p, 1, label.reshape(-1, 1)).reshape(-1)
        if self.smoothing == 0:
            return of_label
        classes, of_all = log_p.shape[1], -log_p.sum(1)
        if self.excluded:
            each = self.smoothing / (classes - 1)
            return (1 - self.smoothing - each) * of_label + each * of_all
        return (1 - self.smoothing) * of_label + self.smoothing / classes * of_all


def build_loss(smoothing: float, others: str) -> nn.Cell:
    return SmoothedCrossEntropy(smoothing, others)
