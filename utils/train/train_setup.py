"""The last part of every network's `build`: from network, loss and optimizer to the train step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from mindspore import nn

from utils.data.sampler import TrainSampler
from utils.distributed.gradient_fusion import Segments, split_all_reduce
from utils.runtime import Runtime
from utils.train import amp
from utils.train.train_step import TrainStep


@dataclass(frozen=True)
class TrainSetup:
    """A train step, the learning rate of every update, and the AllReduce segments."""

    step: TrainStep
    lr: Sequence[float]
    segments: Segments


def build_setup(
    cfg: Any,
    rt: Runtime,
    sampler: TrainSampler,
    net: nn.Cell,
    loss: nn.Cell,
    optimizer: nn.Optimizer,
    lr: Sequence[float],
    clips: tuple[int, ...],
    mix: Optional[nn.Cell] = None,
) -> TrainSetup:
    """Sets the AllReduce fusion, casts the network to `run.amp`, and builds the train step.

    `clips` is the shape of this rank's batch as the network takes it. `mix` is TrainStep's. The
    fusion must be set before TrainStep is built, which reads it. Raises ValueError for a bad
    `run.all_reduce`.
    """
    segments = split_all_reduce(net, optimizer, cfg.run, rt, clips)
    net, steps = amp.cast(net, cfg.run.amp), sampler.steps_per_epoch
    step = TrainStep(net, loss, optimizer, cfg.run, cfg.train, rt, steps, mix, clips[0])
    return TrainSetup(step, lr, segments)
