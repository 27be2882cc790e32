"""Opens the network that eval.py, predict.py and the benchmarks run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from utils.log import log
from utils.scoring.cache import CachedScorer
from utils.scoring.checkpoint import Checkpoint
from utils.scoring.engines import ENGINES, choose_engine, load_onnx
from utils.scoring.scorer import CellScorer, Scorer
from utils.settings import NetworkConfig

if TYPE_CHECKING:
    from utils.networks import Network


def open_scorer(
    network: "Network", cfg: NetworkConfig, path: str, start: Callable[[], Any] = lambda: None
) -> Scorer:
    """The scorer of a checkpoint, or of a MINDIR or ONNX file.

    `run.engine` decides what computes a checkpoint: an inference engine, for which it is exported
    into a cache, or MindSpore. `start` is called before MindSpore is used. Raises ValueError for a
    file that does not fit the config file.
    """
    suffix = Path(path).suffix
    is_eager = cfg.run.mode == "eager"
    if is_eager and suffix in (".onnx", ".mindir"):
        raise ValueError(f"run.mode eager computes a checkpoint, not {path}")
    if suffix == ".onnx":
        return load_onnx(Path(path), network=network, cfg=cfg)
    engine = choose_engine(cfg.run)
    if suffix == ".mindir":
        if engine in ENGINES and (cfg.run.engine, cfg.run.engine_precision) != ("auto", "f32"):
            raise ValueError(f"run.engine: {engine} cannot run {path}; export it to ONNX")
        start()
        from utils.scoring.mindir import load_mindir

        return load_mindir(Path(path), network, cfg)
    checkpoint = Checkpoint(network, cfg, path, start, for_features=True)
    scorer: Scorer
    if engine != "mindspore":
        scorer = CachedScorer(checkpoint, engine)
    else:
        if is_eager:
            log.info("run.mode eager: MindSpore computes the network, operator by operator")
        elif cfg.run.engine == "auto" and cfg.run.device == "CPU":
            log.info("run.engine auto: MindSpore computes the network; openvino is not installed")
        scorer = CellScorer(checkpoint.load(cfg.run.amp_level, dtype=cfg.run.amp_dtype), path)
    scorer.has_classifier = not checkpoint.lacks_classifier
    return scorer
