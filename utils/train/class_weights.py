"""`train.class_weights`: the weights of the classes in the cross entropy; the loss with them."""

from typing import Callable

import numpy as np

from utils.data.sampler import TrainSampler
from utils.log import log
from utils.nn.loss import Loss, SigmoidCrossEntropy
from utils.settings import NetworkConfig

ClassWeights = tuple[float, ...]  # one a class; empty: all 1


def compute_class_weights(cfg: NetworkConfig, sampler: TrainSampler) -> tuple[ClassWeights, ...]:
    """The weights of each data set.

    `balanced`: videos / (classes * videos of the class), whose mean over the videos is 1; with
    several labels, videos without the class / videos with it. They are 1 if the sampler does not
    know the classes, as in a dry run. Raises ValueError for a class without a video, or with all.
    """
    setting = cfg.train.class_weights
    if setting == "":
        return ((),) * len(cfg.class_counts)
    if not isinstance(setting, str):
        return (setting,)
    if sampler.positives is not None:
        return (balance_positives(sampler.positives, sampler.samples),)
    if sampler.classes is None:
        return tuple((1.0,) * count for count in cfg.class_counts)
    sets, labels = sampler.classes.T
    several = len(cfg.class_counts) > 1
    return tuple(
        balance_weights(
            np.bincount(labels[sets == k], minlength=count), f" of data set {k}" if several else ""
        )
        for k, count in enumerate(cfg.class_counts)
    )


def choose_loss(
    cfg: NetworkConfig, class_weights: ClassWeights, build: Callable[[ClassWeights], Loss]
) -> Loss:
    """The loss of the samples: with several labels `SigmoidCrossEntropy`, else that of `build`."""
    if cfg.has_several_labels:
        return SigmoidCrossEntropy(cfg.class_counts[0], class_weights)
    return build(class_weights)


def balance_positives(positives: np.ndarray, samples: int) -> ClassWeights:
    """The weights of classes that so many of the samples have (classes,)."""
    if positives.max() == samples:
        raise ValueError(
            f"train.class_weights balanced: all training videos have class {positives.argmax()}; "
            "correct the list, or give a list of weights"
        )
    check_no_empty_class(positives)
    weights = (samples - positives) / positives
    log.info("train.class_weights balanced: %.4g to %.4g", weights.min(), weights.max())
    return tuple(map(float, weights))


def balance_weights(videos: np.ndarray, owner: str) -> ClassWeights:
    """The weights of classes that have so many videos (classes,); `owner` ends their name."""
    check_no_empty_class(videos, owner)
    weights = videos.sum() / (len(videos) * videos)
    log.info("train.class_weights balanced: %.4g to %.4g", weights.min(), weights.max())
    return tuple(map(float, weights))


def check_no_empty_class(videos: np.ndarray, owner: str = "") -> None:
    empty = np.flatnonzero(videos == 0)
    if len(empty):
        more = f", nor have {len(empty) - 1} others" if len(empty) > 1 else ""
        raise ValueError(
            f"train.class_weights balanced: class {empty[0]}{owner} has no training "
            f"video{more}; correct the list or num_classes, or give a list of weights"
        )
