"""What `build(cfg, plan) -> Recipe` of a network's train.py receives and returns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Callable, Optional

import numpy as np
from mindspore import nn

from utils.data.sampler import TrainSampler
from utils.nn.loss import Loss
from utils.runtime import Runtime
from utils.settings import NetworkConfig
from utils.train import class_weights
from utils.train.class_weights import ClassWeights
from utils.train.freeze import freeze
from utils.weights import checkpoint

# Receives the batches of the next epoch.
UseBatches = Callable[[Iterator[tuple[np.ndarray, ...]]], None]


@dataclass(frozen=True)
class Recipe:
    """What a network trains, and how.

    `lr` has a rate for every update, `mix` is TrainStep's. `before_saving(net)`, with the network
    in its precision, is called once; what it returns is called before an epoch is saved or
    evaluated.
    """

    net: nn.Cell
    loss: Loss
    optimizer: nn.Optimizer
    lr: np.ndarray
    mix: Optional[nn.Cell] = None
    before_saving: Callable[[nn.Cell], Optional[UseBatches]] = lambda net: None  # noqa: E731


@dataclass(frozen=True)
class Plan:
    """What a recipe depends on besides its settings: samples, devices, weights to start from.

    `classifier` is `Network.classifier`.
    """

    cfg: NetworkConfig
    rt: Runtime
    sampler: TrainSampler
    classifier: str

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.steps_per_epoch

    @property
    def updates_per_epoch(self) -> int:
        return self.sampler.updates_per_epoch(self.cfg.train.accumulation_steps)

    @property
    def effective_batch(self) -> int:
        """The samples of an update, over all devices."""
        return self.sampler.effective_batch_size(self.cfg.train.accumulation_steps)

    def load_pretrained(self, net: nn.Cell) -> None:
        """Gives the network the weights of `train.pretrained`, if that is set."""
        train = self.cfg.train
        if train.pretrained:
            checkpoint.load(
                net, path=train.pretrained, new_head=train.new_head, head=self.classifier
            )

    def freeze(self, net: nn.Cell) -> None:
        """Freezes the weights that `train.freeze` names."""
        freeze(net, self.cfg.train.freeze, self.classifier)

    def compute_class_weights(self) -> tuple[ClassWeights, ...]:
        """`train.class_weights` of each data set."""
        return class_weights.compute_class_weights(self.cfg, self.sampler)

    def choose_loss(self, build: Callable[[ClassWeights], Loss]) -> Loss:
        """The loss of one data set: that of `build`, or with several labels another."""
        (weights,) = self.compute_class_weights()
        return class_weights.choose_loss(self.cfg, weights, build)
