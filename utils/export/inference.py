"""The network as eval.py, export.py, predict.py and the benchmarks run it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from utils.export.engine import ENGINES, choose_engine, list_engines, load_onnx
from utils.export.engine_cache import CachedNetwork
from utils.log import log

if TYPE_CHECKING:
    from mindspore import nn


def load_network(
    network: Any,
    cfg: Any,
    path: str,
    start: Callable[[], Any] = lambda: None,
    clips: Optional[int] = None,
) -> Any:
    """The network of a checkpoint, or of a MINDIR or ONNX file, for evaluation.

    `run.engine` decides what computes that of a checkpoint; for auto also `clips`, the number of
    clips of an evaluation. `start` is called before MindSpore is used. Raises ValueError for a file
    that does not fit the config file.
    """
    net = open_network(network, cfg, path, start, clips)
    net.file = path  # for messages
    return net


def open_network(
    network: Any, cfg: Any, path: str, start: Callable[[], Any], clips: Optional[int]
) -> Any:
    suffix = Path(path).suffix
    if suffix == ".onnx":
        return load_onnx(Path(path), network, cfg)
    engine = choose_engine(cfg.run)
    if suffix == ".mindir":
        if cfg.run.engine in ENGINES:
            raise ValueError(f"run.engine: {engine} cannot run {path}; export it to ONNX")
        start()
        from utils.export import mindir

        return mindir.load_network(build_network(network, cfg), cfg, Path(path))

    def load(level: str, **changes: Any) -> "nn.Cell":
        start()
        return load_checkpoint(network, cfg, path, level, **changes)

    if engine != "mindspore":
        engines = list_engines() if cfg.run.engine == "auto" else [engine]
        return CachedNetwork(network, cfg, Path(path), engines, load, clips)
    if cfg.run.engine == "auto" and cfg.run.device == "CPU":
        log.info("run.engine auto: MindSpore computes the network; openvino is not installed")
    return load(cfg.run.amp_level)


def build_network(network: Any, cfg: Any, **changes: Any) -> "nn.Cell":
    """The network for inference on its device.

    Without recomputing, which only a backward pass needs: MindSpore would warn.
    """
    from utils.nn import kernels

    arguments = {**cfg.model_arguments(), **changes}
    if "recompute" in arguments:
        arguments["recompute"] = False
    with kernels.use(kernels.select(cfg.run.device)):
        return network.build_model(**arguments)


def load_checkpoint(network: Any, cfg: Any, path: str, level: str, **changes: Any) -> "nn.Cell":
    """The network of a checkpoint at an amp level; `changes` replace arguments of the network."""
    from utils.weights import checkpoint

    net = build_network(network, cfg, **changes)
    checkpoint.load(net, Path(path), head=network.classifier)
    return prepare_for_evaluation(net, level)


def prepare_for_evaluation(net: "nn.Cell", level: str) -> "nn.Cell":
    """Fuses batch norms, then casts to an amp level."""
    from utils.nn.fuse_conv_bn import fuse_conv_bn
    from utils.train import amp

    return amp.cast(fuse_conv_bn(net), level).set_train(False)
