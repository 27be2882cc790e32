"""The network as eval.py, export.py, predict.py and the benchmarks run it."""

from pathlib import Path
from typing import Any, Callable, Union

from mindspore import nn

from utils.export import mindir
from utils.nn.fuse_conv_bn import fuse_conv_bn
from utils.train import amp
from utils.weights import checkpoint


def load_network(
    build: Callable[..., nn.Cell], cfg: Any, path: str, classifier: str
) -> Union[nn.Cell, mindir.MindirNetwork]:
    """The yaml's network with the weights of a checkpoint, for evaluation; or that of a MINDIR.

    `build` is the network's constructor, `classifier` the regular expression of its classifier's
    names. Raises ValueError for a file that does not fit.
    """
    if Path(path).suffix == ".mindir":
        return mindir.load_network(build(**cfg.model_arguments()), cfg, Path(path))
    return load_checkpoint(build, cfg, path, classifier, cfg.run.amp)


def load_checkpoint(
    build: Callable[..., nn.Cell], cfg: Any, path: str, classifier: str, level: str, **changes: str
) -> nn.Cell:
    """The network of a checkpoint at an amp level; `changes` replace arguments of `build`."""
    net = build(**{**cfg.model_arguments(), **changes})
    checkpoint.load(net, Path(path), head=classifier)
    return prepare_for_evaluation(net, level)


def prepare_for_evaluation(net: nn.Cell, level: str) -> nn.Cell:
    """Fuses batch norms, then casts to an amp level."""
    return amp.cast(fuse_conv_bn(net), level).set_train(False)
