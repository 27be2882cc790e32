"""The loss of ResNet: the cross entropy of the scores of an image, with label smoothing."""

from collections.abc import Sequence

from resnet50.config import Config
from utils.nn.loss import Loss, SigmoidCrossEntropy
from utils.nn.soft_targets import SmoothedCrossEntropy


def build_loss(cfg: Config, class_weights: Sequence[float]) -> Loss:
    """The mean over the batch; a class without a weight of its own has 1.

    With `model.labels: multi` it is the mean sigmoid cross entropy of all classes. A mixed image
    has the losses of both labels in their proportion.
    """
    if cfg.has_several_labels:
        return SigmoidCrossEntropy(cfg.model.num_classes, class_weights)
    return SmoothedCrossEntropy(cfg.train.smoothing, cfg.train.smoothed, class_weights)
