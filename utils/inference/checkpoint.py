"""The network of a checkpoint as a Cell for inference, and the names of its classes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from utils.data.annotation_file import read_class_names
from utils.evaluate.label_space import LabelSpace, find_moved_name
from utils.log import log
from utils.settings import NetworkConfig
from utils.weights.checkpoint_file import CheckpointFile
from utils.weights.description import read_description

if TYPE_CHECKING:
    from mindspore import nn

    from utils.networks import Network


def use_own_names(spaces: Sequence[LabelSpace], checkpoint: Union[CheckpointFile, Path]) -> None:
    """Lets the spaces find the class names that a checkpoint, or the folder of its run, has.

    `checkpoint` is as from `open_weights`, or a path. Raises ValueError if it names another number
    of classes.
    """
    path = checkpoint.path if isinstance(checkpoint, CheckpointFile) else checkpoint
    description = read_description(checkpoint)
    for space in spaces:
        space.run_folder = path.parent
        names = description.classes.get(space.name, ()) if description else ()
        if names and len(names) != space.classes:
            raise ValueError(
                f"{path} has {len(names)} classes, and the settings say {space.classes}: "
                f"give its own config file or none, or --model.num_classes={len(names)}"
            )
        space.own_names = names
        space.trained_seconds = description.seconds if description else 0.0


def assign_class_names(
    spaces: Sequence[LabelSpace], labels: str, checkpoint: Union[CheckpointFile, Path]
) -> None:
    """Sets `names` of the spaces, from the file `labels` (one after the other) or without it.

    Raises ValueError if the file has another number of names than the spaces have classes.
    """
    use_own_names(spaces, checkpoint)
    if not labels:
        for space in spaces:
            space.names = space.find_names()
        return
    classes = sum(space.classes for space in spaces)
    names = read_class_names(Path(labels), f"--labels {labels}", classes)
    for space in spaces:
        space.names = names[: space.classes]
        names = names[space.classes :]
        moved = find_moved_name(space.names, space.own_names)
        if moved:
            log.warning("--labels %s: %r is another class of the checkpoint", labels, moved)


@contextmanager
def draw_no_weights() -> Iterator[None]:
    """The weights of a network that is built inside have shapes, but no numbers, and no memory.

    `init_param` is MindSpore's own switch; no public name replaces `no_init_parameters`.
    """
    from mindspore import Parameter

    Parameter.init_param = False
    try:
        yield
    finally:
        Parameter.init_param = True


def build_network(network: "Network", cfg: NetworkConfig, **changes: Any) -> "nn.Cell":
    """The network for inference on its device, without numbers in its weights: `load` sets them.

    So a file of other shapes takes no memory before it is refused. The network does not recompute,
    which only a backward pass needs: MindSpore would warn. `changes` replace arguments of
    the model.
    """
    from utils.nn import kernels
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
    network: "Network", cfg: NetworkConfig, file: CheckpointFile, *how: Any
) -> "nn.Cell":
    """The network with the weights of a file; `how` are arguments of `prepare_for_inference`."""
    return prepare_for_inference(load_network(network, cfg, file), *how)


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
