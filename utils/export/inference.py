"""The network as eval.py, export.py, predict.py and the benchmarks run it."""

from pathlib import Path
from typing import Any, Callable, Union

from mindspore import nn

from utils.export import exported
from utils.nn.fuse_conv_bn import fuse_conv_bn
from utils.train import amp
from utils.weights import checkpoint


def load(
    build: Callable[..., nn.Cell], cfg: Any, path: str, head: str
) -> Union[nn.Cell, exported.Exported]:
    """The yaml's network with the weights of a checkpoint, for evaluation; or that of a MINDIR.

    `build` is the room's, `head` the regular expression of its classifier's names. Raises
    ValueError for a file that does not fit.
    """
    if Path(path).suffix == ".mindir":
        return exported.load(build(**cfg.model_arguments()), cfg, Path(path))
    return network(build, cfg, path, head, cfg.run.amp)


def network(
    build: Callable[..., nn.Cell], cfg: Any, path: str, head: str, level: str, **changes: str
) -> nn.Cell:
    """That of a checkpoint at an amp level; `changes` are to the arguments of `build`."""
    net = build(**{**cfg.model_arguments(), **changes})
    checkpoint.load(net, Path(path), head=head)
    return ready(net, level)


def ready(net: nn.Cell, level: str) -> nn.Cell:
    """Fuses batch norms, then casts to an amp level."""
    return amp.cast(fuse_conv_bn(net), level).set_train(False)
