"""The base class of the losses of all networks."""

from collections.abc import Sequence
from typing import Optional

from mindspore import Tensor, nn
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
