"""The loss of TSM: the cross entropy of the scores of a clip, the mean over its frames."""

from collections.abc import Sequence

from tsm.config import Config
from utils.nn.loss import CrossEntropy, Loss, SigmoidCrossEntropy


def build_loss(cfg: Config, class_weights: Sequence[float]) -> Loss:
    """The mean over the batch; a class without a weight of its own has 1.

    With `model.labels: multi` it is the mean sigmoid cross entropy of all classes. Smoothing is
    spread over all classes; a mixed clip has the losses of both labels in their proportion.
    """
    if cfg.has_several_labels:
        return SigmoidCrossEntropy(cfg.model.num_classes, class_weights)
    smoothing = cfg.train.smoothing
    if not (smoothing or cfg.data.mixes):
        return CrossEntropy(class_weights, cfg.model.before_softmax)
    if not cfg.model.before_softmax:  # the logarithm of a probability of 0 is infinite
        raise ValueError(
            "model.before_softmax false has no train.smoothing, data.mixup or data.cutmix"
        )
    from utils.nn.soft_targets import SmoothedCrossEntropy  # here: few recipes smooth or mix

    return SmoothedCrossEntropy(smoothing, "included", class_weights)
