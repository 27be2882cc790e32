"""The loss of X3D: the cross entropy of the scores of a clip."""

from collections.abc import Sequence

from utils.nn.loss import CrossEntropy, Loss, SigmoidCrossEntropy
from x3d.config import Config


def build_loss(cfg: Config, class_weights: Sequence[float]) -> Loss:
    """The mean over the batch; a class without a weight of its own has 1.

    With `model.labels: multi` it is the mean sigmoid cross entropy of all classes. Smoothing is
    spread over all classes; a mixed clip has the losses of both labels in their proportion.
    """
    if cfg.has_several_labels:
        return SigmoidCrossEntropy(cfg.model.num_classes, class_weights)
    smoothing = cfg.train.smoothing
    if smoothing or cfg.data.mixes:
        from utils.nn.soft_targets import SmoothedCrossEntropy  # here: few recipes need it

        return SmoothedCrossEntropy(smoothing, "included", class_weights)
    return CrossEntropy(class_weights)
