"""Opens the network that eval.py, predict.py and the benchmarks run."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from utils.log import log
from utils.scoring.cache import CachedScorer
from utils.scoring.engines import ENGINES, choose_engine, load_onnx
from utils.scoring.int8 import find_int8
from utils.scoring.scorer import CellScorer, Scorer
from utils.settings import NetworkConfig

if TYPE_CHECKING:
    from mindspore import nn

    from utils.networks import Network


def load_scorer(
    network: "Network", cfg: NetworkConfig, path: str, start: Callable[[], Any] = lambda: None
) -> Scorer:
    """The scorer of a checkpoint, or of a MINDIR or ONNX file.

    `run.engine` decides what computes a checkpoint. `start` is called before MindSpore is used.
    Raises ValueError for a file that does not fit the config file.
    """
    suffix = Path(path).suffix
    is_eager = cfg.run.mode == "eager"
    if is_eager and suffix in (".onnx", ".mindir"):
        raise ValueError(f"run.mode eager computes a checkpoint, not {path}")
    quantize = None
    if cfg.run.engine_precision == "int8":
        quantize = partial(find_int8, network, cfg, Path(path).parent)
    if suffix == ".onnx":
        return load_onnx(Path(path), network=network, cfg=cfg, quantize=quantize)
    engine = choose_engine(cfg.run)
    if suffix == ".mindir":
        if engine in ENGINES and (cfg.run.engine, cfg.run.engine_precision) != ("auto", "f32"):
            raise ValueError(f"run.engine: {engine} cannot run {path}; export it to ONNX")
        start()
        from utils.scoring.mindir import load_mindir

        return load_mindir(Path(path), network, cfg)

    def load(level: str, rewrite: Optional[Callable] = None) -> "nn.Cell":
        start()
        return load_checkpoint(network, cfg=cfg, path=path, level=level, rewrite=rewrite)

    if engine != "mindspore":
        return CachedScorer(
            network, cfg=cfg, path=Path(path), engine=engine, load=load, quantize=quantize
        )
    if is_eager:
        log.info("run.mode eager: MindSpore computes the network, operator by operator")
    elif cfg.run.engine == "auto" and cfg.run.device == "CPU":
        log.info("run.engine auto: MindSpore computes the network; openvino is not installed")
    start()
    net = load_checkpoint(
        network, cfg=cfg, path=path, level=cfg.run.amp_level, dtype=cfg.run.amp_dtype
    )
    return CellScorer(net, str(path))


def build_network(network: "Network", cfg: NetworkConfig) -> "nn.Cell":
    """The network for inference on its device.

    Without recomputing, which only a backward pass needs: MindSpore would warn.
    """
    from utils.nn import kernels

    arguments = cfg.model_arguments()
    if "recompute" in arguments:
        arguments["recompute"] = False
    with kernels.use(kernels.select(cfg.run.device)):
        return network.build_model(**arguments)


def load_checkpoint(
    network: "Network",
    cfg: NetworkConfig,
    path: str,
    level: str,
    rewrite: Optional[Callable] = None,
    dtype: str = "float16",
) -> "nn.Cell":
    """The network of a checkpoint, prepared for evaluation at an amp level."""
    from utils.weights import checkpoint

    net = build_network(network, cfg)
    checkpoint.load(net, Path(path), head=network.classifier)
    return prepare_for_evaluation(net, level=level, rewrite=rewrite, dtype=dtype)


def prepare_for_evaluation(
    net: "nn.Cell",
    level: str,
    rewrite: Optional[Callable[["nn.Cell"], None]] = None,
    dtype: str = "float16",
) -> "nn.Cell":
    """Fuses batch norms, calls `rewrite`, which may replace Cells, and casts to an amp level."""
    from utils.nn.fuse_conv_bn import fuse_conv_bn
    from utils.train import amp

    fuse_conv_bn(net)
    if rewrite is not None:
        rewrite(net)
    return amp.cast(net, level, dtype).set_train(False)
