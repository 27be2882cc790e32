"""What `build(cfg, plan) -> TrainParts` of a network's train.py receives and returns.

And what it takes from the settings alike in all networks: `train.freeze`, weights that a training
leaves as they are, and `train.class_weights`, the weights of the classes in the cross entropy.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Callable, Optional

import numpy as np
from mindspore import nn

from utils.data.sampler import TrainSampler
from utils.evaluate.label_space import find_moved_name
from utils.log import log
from utils.messages import join_names
from utils.networks import Job
from utils.nn.layers import freeze_norms, list_norms
from utils.nn.loss import Loss
from utils.settings import NetworkConfig
from utils.train import optimizers
from utils.weights import checkpoint
from utils.weights.checkpoint_file import CheckpointFile, read_checkpoint
from utils.weights.description import read_description

BACKBONE = "backbone"  # everything but the classifier
ClassWeights = tuple[float, ...]  # one a class; empty: all 1


@dataclass(frozen=True)
class TrainParts:
    """What a network trains, and how.

    `lr` has a rate for every update, `mix` is TrainStep's. `before_saving` is called before an
    epoch is saved or evaluated, with the batches of the next epoch: X3D's precise batch norm.
    """

    net: nn.Cell
    loss: Loss
    optimizer: nn.Optimizer
    lr: np.ndarray
    mix: Optional[nn.Cell] = None
    before_saving: Optional[Callable[[Iterator[tuple]], None]] = None


@dataclass(frozen=True)
class Plan(Job):
    """What `build` needs besides the settings: the network, devices, samples.

    `classes` are the class names of each data set that has some.
    """

    sampler: TrainSampler
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def updates_per_epoch(self) -> int:
        return self.sampler.updates_per_epoch(self.cfg.train.accumulation_steps)

    @property
    def effective_batch(self) -> int:
        """The samples of an update, over all devices."""
        return self.sampler.effective_batch_size(self.cfg.train.accumulation_steps)

    def load_and_freeze(self, net: nn.Cell) -> None:
        """Loads the weights of `train.pretrained`, and freezes those that `train.freeze` names.

        Batch norms that `train.batch_norm` freezes are frozen before. Raises ValueError if the
        weights do not fit, or belong to classes in another order.
        """
        train = self.cfg.train
        if train.pretrained:
            file = read_checkpoint(train.pretrained)
            if not train.new_head:
                check_kept_classes(file, self.classes)
            checkpoint.load(
                net,
                file,
                new_head=train.new_head,
                head=self.network.classifier,
                naming=self.network.parameter_names(),
            )
        freeze_weights(net, train.freeze, self.network.classifier)

    def scale_head(self, groups: list[dict]) -> list[dict]:
        """An optimizer's groups, with `train.head_lr_mult` for the classifier."""
        return optimizers.scale_head(groups, self.network.classifier, self.cfg.train.head_lr_mult)

    def build_mix(self, normalize: nn.Cell) -> Optional[nn.Cell]:
        """`TrainStep`'s `mix`; None without mixup and cutmix. `normalize` is the network's."""
        if not self.cfg.data.mixes:
            return None
        from utils.nn.soft_targets import MixBatch  # here: most trainings mix no clips

        return MixBatch(normalize)


def check_kept_classes(file: CheckpointFile, classes: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError if the classifier of a checkpoint has some of the classes elsewhere."""
    own = read_description(file)
    for data_set, names in classes.items():
        moved = find_moved_name(names, own.classes.get(data_set, ()) if own else ())
        if moved:
            raise ValueError(
                f"train.pretrained: {file.path} has the class {moved!r} with another label: set "
                "train.new_head=true, or give the classes the checkpoint's order"
            )


def freeze_weights(net: nn.Cell, setting: str, classifier: str) -> None:
    """Freezes the weights that `train.freeze` names; logs how many are trained.

    They get no gradient. A batch norm without a trained weight evaluates: it uses its running
    statistics, which stay as they are. `classifier` is `Network.classifier`. Raises ValueError if
    the setting names no weight, or all of them.
    """
    if not setting:
        return
    weights = net.trainable_params()
    if setting == BACKBONE:
        frozen = [weight for weight in weights if not re.search(classifier, weight.name)]
    else:
        frozen = [weight for weight in weights if re.search(setting, weight.name)]
    if not 0 < len(frozen) < len(weights):
        names = join_names([weight.name for weight in weights], 3)
        raise ValueError(f"train.freeze: {setting!r} matches none or all of the weights: {names}")
    for weight in frozen:
        weight.requires_grad = False
    norms = list_norms(net)
    freeze_norms(n for n in norms if not (n.gamma.requires_grad or n.beta.requires_grad))
    trained = len(weights) - len(frozen)
    log.info("train.freeze %s: %d of %d weights are trained", setting, trained, len(weights))


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
    if sampler.class_samples is None:
        return tuple((1.0,) * count for count in cfg.class_counts)
    if cfg.has_several_labels:
        (have,) = sampler.class_samples
        parts = [(have, sampler.samples - have)]
    else:
        parts = [(len(videos) * videos, videos.sum()) for videos in sampler.class_samples]
    weights = []
    for k, (denominators, numerators) in enumerate(parts):
        empty = np.flatnonzero((denominators == 0) | (numerators == 0))
        if len(empty):
            raise ValueError(
                f"train.class_weights balanced: no or every training video of data set {k} has one "
                f"of the labels {join_names(list(map(str, empty)), 3)}; give weights"
            )
        values = numerators / denominators
        log.info("train.class_weights balanced: %.4g to %.4g", values.min(), values.max())
        weights.append(tuple(map(float, values)))
    return tuple(weights)
