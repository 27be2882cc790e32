"""The base class of the losses of all networks."""

from collections.abc import Sequence
from typing import Optional

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype


def build_class_weights(weights: Sequence[float]) -> Optional[Tensor]:
    """float32 (classes,), or None if all are 1, which saves their kernels."""
    return Tensor(weights, mstype.float32) if len(weights) else None


class Loss(nn.Cell):
    """Scores of the network and a target to the mean loss over the batch, a float32 scalar.

    The first column of a target with columns is the label.
    """

    def top1(self, scores: Tensor, target: Tensor) -> Tensor:
        """The fraction of the batch whose label has the highest score."""
        label = target if target.ndim == 1 else target[:, 0].astype(mstype.int32)
        return (scores.argmax(axis=-1) == label).astype(mstype.float32).mean()


class CrossEntropy(Loss):
    """Scores (N, classes) and labels int32 (N,) to the mean loss, a float32 scalar.

    `class_weights` are `train.class_weights`: a sample has the weight of its class, also in the
    mean. If `before_softmax` is false, the network returns probabilities.
    """

    def __init__(self, class_weights: Sequence[float] = (), before_softmax: bool = True):
        super().__init__()
        self.class_weights = build_class_weights(class_weights)
        self.before_softmax = before_softmax

    def construct(self, scores: Tensor, label: Tensor) -> Tensor:
        scores = scores.astype(mstype.float32)
        if self.before_softmax:
            return ops.cross_entropy(scores, label, self.class_weights)
        return ops.nll_loss(ops.log(scores), label, self.class_weights)


class SigmoidCrossEntropy(Loss):
    """Raw scores (N, classes) and targets float32 (N, classes), 1 for each label, to the mean loss.

    It is the mean over all scores, in float32. `class_weights` are `train.class_weights`: the
    weight of a class in the samples that have it.
    """

    def __init__(self, classes: int, class_weights: Sequence[float] = ()):
        super().__init__()
        self.ones = Tensor([1.0] * classes, mstype.float32)
        self.positive_weights = build_class_weights(class_weights or [1.0] * classes)

    def construct(self, scores: Tensor, target: Tensor) -> Tensor:
        return ops.binary_cross_entropy_with_logits(
            scores.astype(mstype.float32), target, self.ones, self.positive_weights
        )

    def top1(self, scores: Tensor, target: Tensor) -> Tensor:
        """The fraction of the samples with a label whose highest score is of one of theirs."""
        best = scores.argmax(axis=-1).reshape(-1, 1)
        hits = ops.gather_elements(target, 1, best).sum()
        return hits / ops.maximum(target.max(axis=-1).sum(), 1)
