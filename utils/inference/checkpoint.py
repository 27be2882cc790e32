"""The network of a checkpoint as a Cell for inference."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional

from utils.settings import NetworkConfig
from utils.weights.checkpoint_file import CheckpointFile

if TYPE_CHECKING:
    from mindspore import nn

    from utils.networks import Network


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a file, for a network with the settings `cfg`.

    `start` is called before MindSpore is used. `for_features`: the file may lack the classifier,
    which is then a new one.
    """

    network: "Network"
    cfg: NetworkConfig
    file: CheckpointFile
    start: Callable[[], Any] = lambda: None  # noqa: E731
    for_features: bool = False

    @property
    def has_classifier(self) -> bool:
        return any(re.search(self.network.classifier, name) for name in self.file.arrays)

    def build(self) -> "nn.Cell":
        """The network with the weights, as it was trained."""
        self.start()
        from utils.weights import checkpoint

        net = build_network(self.network, self.cfg)
        is_new = self.for_features and not self.has_classifier
        checkpoint.load(net, self.file, new_head=is_new, head=self.network.classifier)
        return net

    def load(
        self, level: str, rewrite: Optional[Callable] = None, dtype: str = "float16"
    ) -> "nn.Cell":
        """The network, prepared for inference at an amp level; see `prepare_for_inference`."""
        return prepare_for_inference(self.build(), level=level, rewrite=rewrite, dtype=dtype)


def build_network(network: "Network", cfg: NetworkConfig, **changes: Any) -> "nn.Cell":
    """The network for inference on its device, without numbers in its weights: `load` sets them.

    So a file of other shapes takes no memory before it is refused. The network does not recompute,
    which only a backward pass needs: MindSpore would warn. `changes` replace arguments of
    the model.
    """
    from utils.nn import kernels
    from utils.nn.layers import draw_no_weights
    from utils.runtime import cap_instruction_set

    cap_instruction_set()  # some callers have started no device
    arguments = {**cfg.model_arguments(), **changes}
    if "recompute" in arguments:
        arguments["recompute"] = False
    with draw_no_weights(), kernels.use(kernels.select(cfg.run.device)):
        return network.build_model(**arguments)


def prepare_for_inference(
    net: "nn.Cell",
    level: str,
    rewrite: Optional[Callable[["nn.Cell"], None]] = None,
    dtype: str = "float16",
) -> "nn.Cell":
    """Fuses batch norms, calls `rewrite`, which may replace Cells, and casts to an amp level."""
    from utils.nn import amp
    from utils.nn.fuse_conv_bn import fuse_conv_bn

    fuse_conv_bn(net)
    if rewrite is not None:
        rewrite(net)
    return amp.cast(net, level, dtype).set_train(False)
