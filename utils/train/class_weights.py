"""`train.class_weights`: the weights of the classes in the cross entropy."""

import numpy as np

from utils.config import NetworkConfig
from utils.data.sampler import TrainSampler
from utils.log import log

ClassWeights = tuple[float, ...]  # one a class; empty: all 1


def compute_class_weights(cfg: NetworkConfig, sampler: TrainSampler) -> tuple[ClassWeights, ...]:
    """The weights of each data set.

    `balanced`: videos / (classes * videos of the class), whose mean over the videos is 1. They are
    1 if the sampler does not know the classes, as in a dry run. Raises ValueError for a class
    without a video.
    """
    setting = cfg.train.class_weights
    if setting == "":
        return ((),) * len(cfg.class_counts)
    if not isinstance(setting, str):
        return (setting,)
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


def balance_weights(videos: np.ndarray, owner: str) -> ClassWeights:
    """The weights of classes that have so many videos (classes,); `owner` ends their name."""
    empty = np.flatnonzero(videos == 0)
    if len(empty):
        more = f", nor have {len(empty) - 1} others" if len(empty) > 1 else ""
        raise ValueError(
            f"train.class_weights balanced: class {empty[0]}{owner} has no training "
            f"video{more}; correct the list or num_classes, or give a list of weights"
        )
    weights = videos.sum() / (len(videos) * videos)
    log.info("train.class_weights balanced: %.4g to %.4g", weights.min(), weights.max())
    return tuple(map(float, weights))
