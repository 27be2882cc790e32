"""`Scorer`: a network for inference, whatever computes it; and that of a Cell.

`Steps`: a network that reads a stream.
"""

import abc
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Callable, NamedTuple

import numpy as np

from utils.log import log

if TYPE_CHECKING:
    from mindspore import nn


class Scorer(abc.ABC):
    """Maps clips to scores, or to features: the input of the classifier.

    `device` computes it: CPU, GPU or Ascend. `batch` is the number of clips of one call; 0: any.
    `engine` is a value of run.engine, and `name` the file of the network; both are for messages.
    """

    device = "CPU"
    batch = 0
    engine = "mindspore"
    name = "the network"
    has_classifier = True  # else it gives features only

    @abc.abstractmethod
    def __call__(self, clips: np.ndarray) -> np.ndarray:
        """uint8 clips (N, ...) to scores (N, ..., classes); several heads are concatenated."""

    @abc.abstractmethod
    def features(self, clips: np.ndarray) -> np.ndarray:
        """uint8 clips (N, ...) to features float32 (N, C). ValueError if a file has none."""

    def run_passes(self, passes: Iterable[np.ndarray]) -> np.ndarray:
        """The scores of the clips of all passes, one after the other."""
        return np.concatenate([self(clips) for clips in passes])


class Steps(NamedTuple):
    """A network that keeps buffers from one call to the next, and so reads a stream.

    `run(frame, *buffers)` returns the scores and the new buffers. `buffers` are the first ones.
    """

    run: Callable[..., list[np.ndarray]]
    buffers: Sequence[np.ndarray] = ()

    def run_all(self, batches: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Each output for all batches, one after the other. Without buffers, `run` takes clips."""
        buffers = [*self.buffers]
        results = []
        for batch in batches:
            outputs = self.run(batch, *buffers)
            buffers = outputs[len(outputs) - len(buffers) :]
            results.append(outputs)
        return [np.concatenate(parts) for parts in zip(*results)]


class CellScorer(Scorer):
    """A Cell, in evaluation mode; with the argument True, it returns its features last."""

    def __init__(self, net: "nn.Cell", name: str = "the network"):
        import mindspore as ms

        self.net = net
        self.name = name
        self.device = ms.get_context("device_target")
        self.has_run = False

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        return self.run_passes([clips])

    def features(self, clips: np.ndarray) -> np.ndarray:
        """By a second graph, which is compiled when features are asked for."""
        from mindspore import Tensor

        self.prepare()
        return self.net(Tensor(clips), True)[-1].asnumpy()

    def prepare(self) -> None:
        import mindspore as ms

        if not self.has_run and ms.get_context("mode") == ms.GRAPH_MODE:
            log.info("MindSpore compiles the graph of the network for the first clips ...")
        self.has_run = True
        if self.net.training:  # between the epochs of a training
            self.net.set_train(False)

    def run_passes(self, passes: Iterable[np.ndarray]) -> np.ndarray:
        """MindSpore launches all passes before the scores are read, once for each head."""
        from mindspore import Tensor, ops

        self.prepare()
        outputs = [self.net(Tensor(clips)) for clips in passes]
        heads = zip(*outputs) if isinstance(outputs[0], tuple) else [outputs]
        scores = [ops.cat(head) if len(head) > 1 else head[0] for head in heads]
        return np.concatenate([head.asnumpy() for head in scores], axis=-1)
