"""The loss of TSM: mean cross entropy of the scores averaged over the frames, in float32."""

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype


class CrossEntropy(nn.Cell):
    """Scores (N, classes) and labels int32 (N,) to the mean loss, a float32 scalar.

    `probabilities`: the network returns probabilities (`before_softmax: false`).
    """

    def __init__(self, probabilities: bool = False):
        super().__init__()
        self.probabilities = probabilities

    def construct(self, scores: Tensor, label: Tensor) -> Tensor:
        scores = scores.astype(mstype.float32)
        if self.probabilities:
            return ops.nll_loss(ops.log(scores), label)
        return ops.cross_entropy(scores, label)


def build_loss(before_softmax: bool) -> nn.Cell:
    """The loss of a network with the setting `model.before_softmax`."""
    return CrossEntropy(probabilities=not before_softmax)
