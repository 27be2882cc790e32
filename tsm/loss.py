"""The loss of TSM: mean cross entropy of the scores averaged over the frames, in float32."""

from mindspore import Tensor, ops
from mindspore import dtype as mstype

from utils.nn.loss import Loss


class CrossEntropy(Loss):
    """Scores (N, classes) and labels int32 (N,) to the mean loss, a float32 scalar.

    With `model.before_softmax` false the network returns probabilities.
    """

    def __init__(self, before_softmax: bool = True):
        super().__init__()
        self.before_softmax = before_softmax

    def construct(self, scores: Tensor, label: Tensor) -> Tensor:
        scores = scores.astype(mstype.float32)
        if self.before_softmax:
            return ops.cross_entropy(scores, label)
        return ops.nll_loss(ops.log(scores), label)
