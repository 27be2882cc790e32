"""Opens the network that eval.py, predict.py and the benchmarks run.

OpenVINO and ONNX Runtime run a checkpoint from an exported file, which is written once, into the
cache `onnx` in `get_cache_folder()`. Such a file takes any number of clips. Its name is
`compute_key`, then the shape of a clip, then the inference engine that has run it.
"""

import contextlib
import functools
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import numpy as np

from utils.evaluate.scorer import CellScorer, Scorer
from utils.files import get_cache_folder, report_write_errors, wait_for_lock
from utils.inference.checkpoint import build_network, load_network, prepare_for_inference
from utils.inference.engines import ENGINES, OPEN, FileScorer, choose_engine, read_onnx
from utils.log import log
from utils.messages import escape_control
from utils.networks import Network, compute_key
from utils.settings import NetworkConfig
from utils.weights.checkpoint_file import CheckpointFile, read_checkpoint
from utils.weights.description import check_checksum

if TYPE_CHECKING:
    from mindspore import nn

PRECISIONS = {"f32": "float32", "bf16": "bfloat16"}
KEPT_FILES = 8  # in the cache, the last used ones
LONGEST_WAIT = 600  # seconds for the export of another process


def open_scorer(
    network: Network,
    cfg: NetworkConfig,
    file: Union[CheckpointFile, Path],
    start: Callable[[], Any] = lambda: None,
) -> Scorer:
    """The scorer of a file from `open_weights`: a checkpoint, or the path of a MINDIR or ONNX file.

    `run.engine` decides what computes a checkpoint: an inference engine, for which it is exported
    into a cache, or MindSpore. `start` is called before MindSpore is used. Raises ValueError for a
    file that does not fit the config file.
    """
    if not isinstance(file, CheckpointFile):
        return open_exported(network, cfg, file, start)
    engine = choose_engine(cfg.run)
    has_classifier = any(re.search(network.classifier, name) for name in file.arrays)
    scorer: Scorer
    if engine != "mindspore":
        scorer = CachedScorer(network, cfg, file, engine, not has_classifier, start)
    else:
        if cfg.run.mode == "eager":
            log.info("run.mode eager: MindSpore computes the network, operator by operator")
        elif cfg.run.engine == "auto" and cfg.run.device == "CPU":
            log.info("run.engine auto: MindSpore computes the network; openvino is not installed")
        start()
        net = load_network(network, cfg, file, not has_classifier)
        net = prepare_for_inference(net, cfg.run.amp_level, dtype=cfg.run.amp_dtype)
        scorer = CellScorer(net, str(file.path))
    scorer.has_classifier = has_classifier
    return scorer


def open_exported(
    network: Network, cfg: NetworkConfig, path: Path, start: Callable[[], Any]
) -> FileScorer:
    """The network of an ONNX or MINDIR file for the settings of a config file.

    Raises ValueError for a damaged file, one of another network, number of classes or batch, or
    if nothing here can run it. Logs a warning for a file without a checksum.
    """
    engine = choose_engine(cfg.run)
    is_onnx = path.suffix == ".onnx"
    if is_onnx and engine == "mindspore":
        raise ValueError(f"{path}: an ONNX file needs --run.device=CPU and openvino or onnxruntime")
    if not is_onnx and (cfg.run.engine in ENGINES or cfg.run.engine_precision != "f32"):
        raise ValueError(f"run.engine: {engine} cannot run {path}; export it to ONNX")
    if path.is_file() and not check_checksum(path):
        log.warning("%s has no checksum, so damage to its numbers would not be noticed", path)
    if is_onnx:
        content = read_onnx(path)
        open_file = functools.partial(OPEN[engine], path, cfg.run.engine_precision)
        device = "CPU"
    else:
        start()
        from utils.inference.mindir import open_mindir, read_mindir

        content = read_mindir(path)
        open_file, device = open_mindir(path)
        engine = "mindspore"
    classes = sum(cfg.class_counts)
    info = content.info
    if (owner := info.get("network") or network.name) != network.name:
        owner = escape_control(owner)[:80]
        raise ValueError(f"{path} holds a network of {owner}, not of {network.name}")
    if 0 < content.classes != classes:
        raise ValueError(f"{path} has {content.classes} classes, the config file has {classes}")
    labels = "multi" if cfg.has_several_labels else "single"
    if info.get("labels", labels) != labels:
        raise ValueError(f"{path} was not exported with model.labels {labels}; export it again")
    normalize = None
    if content.dtype == "float32":
        from mindspore import Tensor

        cell = build_network(network, cfg)
        normalize = lambda clips: cell.normalize(Tensor(clips)).asnumpy()  # noqa: E731
    return FileScorer(
        path, content.shape, classes, open_file, engine, normalize, content.buffers, device
    )


class CachedScorer(Scorer):
    """The network of a checkpoint, computed by `engine` in `run.engine_precision`.

    The first call opens the file in the cache, or exports it. If that fails, `run.engine` is auto
    and the precision f32, MindSpore computes the network, in float32. With `new_head` the
    classifier is a new one: the network is for features.

    Raises ValueError for a checkpoint that does not fit.
    """

    def __init__(
        self,
        network: Network,
        cfg: NetworkConfig,
        file: CheckpointFile,
        engine: str,
        new_head: bool = False,
        start: Callable[[], Any] = lambda: None,
    ):
        self.network = network
        self.cfg = cfg
        self.file = file
        self.name = str(file.path)
        self.engine = engine
        self.new_head = new_head
        self.start = start
        self.load = functools.lru_cache(maxsize=2)(self.build)
        self.folder = get_cache_folder() / "onnx"
        self.scorers: dict[tuple, Scorer] = {}  # by the shape of a clip
        self.key = compute_key(network.name, cfg, file.digest)
        if not list(self.folder.glob(f"{self.key}-*.onnx")):
            self.load("O0")  # a checkpoint that does not fit is an error before videos are read

    def build(self, level: str, rewrite: Optional[Callable] = None) -> "nn.Cell":
        """The network; reads the file again if its arrays are no longer in memory."""
        self.start()
        file = self.file if self.file.arrays else read_checkpoint(self.file.path)
        if file.digest != self.file.digest:
            raise ValueError(f"{self.name} has changed since it was read: begin again")
        net = load_network(self.network, self.cfg, file, self.new_head)
        return prepare_for_inference(net, level, rewrite)

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        return self.get_scorer(clips.shape)(clips)

    def features(self, clips: np.ndarray) -> np.ndarray:
        return self.get_scorer(clips.shape).features(clips)

    def get_scorer(self, shape: tuple[int, ...]) -> Scorer:
        """The scorer for clips of this shape, opened once."""
        clip = shape[1:]
        if clip not in self.scorers:
            self.scorers[clip] = self.open(shape)
        return self.scorers[clip]

    def open(self, shape: tuple[int, ...], online: bool = False) -> Scorer:
        """The scorer for clips like the first ones, of this shape; `online`: for frames."""
        clip = shape[1:]
        precision = self.cfg.run.engine_precision
        form = f"{'x'.join(map(str, clip))}{'-online' if online else ''}-{self.engine}"
        file = self.folder / f"{self.key}-{form}.onnx"
        try:
            if not is_sound(file):
                self.export(file, clip, online)
            with contextlib.suppress(OSError):  # the cache may be read-only
                os.utime(file)
            classes = sum(self.cfg.class_counts)
            open_file = functools.partial(OPEN[self.engine], file, precision)
            buffers = read_onnx(file).buffers if online else None
            sizes = shape if online else (0, *clip)
            scorer = FileScorer(file, sizes, classes, open_file, self.engine, buffers=buffers)
            scorer.sessions[shape] = open_file(shape)
        except (RuntimeError, ValueError) as error:
            if precision != "f32":
                raise ValueError(f"run.engine_precision: {error}") from None
            if self.cfg.run.engine != "auto":
                raise ValueError(f"run.engine: {error}") from None
            log.warning("run.engine auto: MindSpore computes the network: %s", error)
            return CellScorer(self.load("O0"), self.name)
        self.load.cache_clear()
        self.file = self.file._replace(arrays={})
        log.info("%s computes the network, in %s", ENGINES[self.engine], PRECISIONS[precision])
        return scorer

    def export(self, file: Path, clip: tuple[int, ...], online: bool) -> None:
        """Leaves a sound file in the cache, which this process or one that was faster writes."""
        from utils.inference.export import WITH_FEATURES, ExportOptions, export

        outputs = "scores" if online else WITH_FEATURES
        options = ExportOptions(
            "onnx", file, int(online), "uint8", "fp32", self.engine, outputs, online
        )
        spec = replace(self.network.describe_export(self.cfg, online), clip=clip)
        work = f"exporting the network for {ENGINES[self.engine]}"
        with report_write_errors(file.parent, "the cache of exported networks"):
            file.parent.mkdir(parents=True, exist_ok=True)
            waiting = functools.partial(log.info, f"waiting for another process, {work} ...")
            with wait_for_lock(file.parent, waiting, LONGEST_WAIT):  # of several ranks, one works
                if not is_sound(file):
                    log.info("%s, once ...", work)
                    export(self.load, spec, options, self.network.name)
                    delete_old_files(file.parent)  # under the lock: no other export is running


def is_sound(file: Path) -> bool:
    """Whether the file exists with the right checksum."""
    with contextlib.suppress(ValueError):
        return check_checksum(file)
    return False


def delete_old_files(folder: Path, count: int = KEPT_FILES) -> None:
    """Deletes all but the last used files of the cache."""
    own = folder.glob(f"{'[0-9a-f]' * 32}-*.onnx")
    files = sorted(own, key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[count:]:
        file.unlink(missing_ok=True)
