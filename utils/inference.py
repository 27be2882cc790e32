"""The network as eval.py, export.py, predict.py and the benchmarks run it."""

from typing import Any, Callable

from mindspore import nn

from utils import amp, checkpoint
from utils.folding import fold


def load(build: Callable[..., nn.Cell], cfg: Any, path: str, head: str) -> nn.Cell:
    """The yaml's network with the weights of a checkpoint, for evaluation.

    `build` is the room's, `head` the regular expression of its classifier's names. Raises
    ValueError for a file that does not fit.
    """
    net = build(**cfg.network())
    checkpoint.load(net, path, head=head)
    return ready(net, cfg.run.amp)


def ready(net: nn.Cell, level: str) -> nn.Cell:
    """Batch norms folded, at an amp level."""
    return amp.cast(fold(net), level).set_train(False)
