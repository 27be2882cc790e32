"""The network of a checkpoint as a Cell for inference."""

from typing import TYPE_CHECKING, Any, Callable, Optional

from utils.settings import NetworkConfig
from utils.weights.checkpoint_file import CheckpointFile

if TYPE_CHECKING:
    from mindspore import nn

    from utils.networks import Network


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


def load_network(
    network: "Network", cfg: NetworkConfig, file: CheckpointFile, new_head: bool = False
) -> "nn.Cell":
    """The network with the weights of a file, as it was trained.

    With `new_head` the classifier is a new one.
    """
    from utils.weights import checkpoint

    net = build_network(network, cfg)
    checkpoint.load(net, file, new_head, head=network.classifier)
    return net


def load_for_inference(
    network: "Network",
    cfg: NetworkConfig,
    file: CheckpointFile,
    level: str,
    rewrite: Optional[Callable[["nn.Cell"], None]] = None,
    new_head: bool = False,
    dtype: str = "float16",
) -> "nn.Cell":
    """The network with the weights of a file, as `prepare_for_inference` makes it."""
    return prepare_for_inference(load_network(network, cfg, file, new_head), level, rewrite, dtype)


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
