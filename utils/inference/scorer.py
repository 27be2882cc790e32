"""`Scorer`: a network for inference, whatever computes it; and that of a Cell."""

import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from utils.log import log

if TYPE_CHECKING:
    from mindspore import nn


class Scorer(abc.ABC):
    """Maps clips to scores.

    `device` computes it: CPU, GPU or Ascend. `batch` is the number of clips of one call; 0: any.
    `engine` is a value of run.engine, and `name` the file of the network; both are for messages.
    """

    device = "CPU"
    batch = 0
    engine = "mindspore"
    name = "the network"

    @abc.abstractmethod
    def __call__(self, clips: np.ndarray) -> np.ndarray:
        """uint8 clips (N, ...) to scores (N, ..., classes); several heads are concatenated."""

    def run_passes(self, passes: Iterable[np.ndarray]) -> np.ndarray:
        """The scores of the clips of all passes, one after the other."""
        return np.concatenate([self(clips) for clips in passes])


class CellScorer(Scorer):
    """A Cell, in evaluation mode."""

    def __init__(self, net: "nn.Cell", name: str = "the network"):
        import mindspore as ms

        self.net = net
        self.name = name
        self.device = ms.get_context("device_target")
        self.has_run = False

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        return self.run_passes([clips])

    def run_passes(self, passes: Iterable[np.ndarray]) -> np.ndarray:
        """MindSpore launches all passes before the scores are read, once for each head."""
        from mindspore import Tensor, ops

        if not self.has_run:
            log.info("MindSpore compiles the graph of the network for the first clips ...")
            self.has_run = True
        if self.net.training:  # between the epochs of a training
            self.net.set_train(False)
        outputs = [self.net(Tensor(clips)) for clips in passes]
        heads = zip(*outputs) if isinstance(outputs[0], tuple) else [outputs]
        scores = [ops.cat(head) if len(head) > 1 else head[0] for head in heads]
        return np.concatenate([head.asnumpy() for head in scores], axis=-1)
