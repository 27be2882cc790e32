"""The loss of X3D: mean cross entropy of raw scores, in float32."""

from mindspore import Tensor, ops
from mindspore import dtype as mstype

from utils.nn.loss import Loss


class CrossEntropy(Loss):
    """Scores (N, classes) and labels int32 (N,) to the mean loss, a float32 scalar."""

    def construct(self, scores: Tensor, label: Tensor) -> Tensor:
        return ops.cross_entropy(scores.astype(mstype.float32), label)
