"""The loss of TSM: mean cross entropy of the scores of a clip, in float32."""

from collections.abc import Sequence

from mindspore import Tensor, ops
from mindspore import dtype as mstype

from utils.nn.loss import Loss, build_class_weights


class CrossEntropy(Loss):
    """Scores (N, classes) and labels int32 (N,) to the mean loss, a float32 scalar.

    With `model.before_softmax` false the network returns probabilities. `class_weights` are
    `train.class_weights`: a clip has the weight of its class, also in the mean.
    """

    def __init__(self, before_softmax: bool = True, class_weights: Sequence[float] = ()):
        super().__init__()
        self.before_softmax = before_softmax
        self.class_weights = build_class_weights(class_weights)

    def construct(self, scores: Tensor, label: Tensor) -> Tensor:
        scores = scores.astype(mstype.float32)
        if self.before_softmax:
            return ops.cross_entropy(scores, label, self.class_weights)
        return ops.nll_loss(ops.log(scores), label, self.class_weights)
