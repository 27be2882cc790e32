"""The loss of X3D: mean cross entropy of raw scores, in float32."""

from collections.abc import Sequence

from mindspore import Tensor, ops
from mindspore import dtype as mstype

from utils.nn.loss import Loss, build_class_weights


class CrossEntropy(Loss):
    """Scores (N, classes) and labels int32 (N,) to the mean loss, a float32 scalar.

    `class_weights` are `train.class_weights`: a clip has the weight of its class, also in the mean.
    """

    def __init__(self, class_weights: Sequence[float] = ()):
        super().__init__()
        self.class_weights = build_class_weights(class_weights)

    def construct(self, scores: Tensor, label: Tensor) -> Tensor:
        return ops.cross_entropy(scores.astype(mstype.float32), label, self.class_weights)
