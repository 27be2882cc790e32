"""Opens the network that eval.py, predict.py and the benchmarks run.

OpenVINO and ONNX Runtime run a checkpoint from an exported file, which is written once, into the
cache `onnx` in `get_cache_folder()`. Such a file takes any number of clips. Its name is
`compute_key`, then the shape of a clip, then the inference engine that has run it.
"""

import contextlib
import functools
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import numpy as np

from utils.evaluate.scorer import CellScorer, Scorer
from utils.files import (
    get_cache_folder,
    report_write_errors,
    wait_for_lock,
)
from utils.inference.checkpoint import Checkpoint
from utils.inference.engines import (
    ENGINES,
    OnnxScorer,
    choose_engine,
    count_classes,
    load_onnx,
    read_description,
)
from utils.log import log
from utils.networks import compute_key
from utils.settings import NetworkConfig
from utils.weights.checkpoint_file import CheckpointFile, open_weights, read_checkpoint
from utils.weights.description import check_checksum

if TYPE_CHECKING:
    from mindspore import nn

    from utils.networks import Network

PRECISIONS = {"f32": "float32", "bf16": "bfloat16"}
OWN_NAME = re.compile(r"[0-9a-f]{32}-.+\.onnx")  # of a file in the cache
KEPT_FILES = 8  # in the cache, the last used ones
LONGEST_WAIT = 600  # seconds for the export of another process


def open_scorer(
    network: "Network",
    cfg: NetworkConfig,
    file: Union[CheckpointFile, Path, str],
    start: Callable[[], Any] = lambda: None,
) -> Scorer:
    """The scorer of a checkpoint, or of a MINDIR or ONNX file: its path, or as `open_weights`.

    `run.engine` decides what computes a checkpoint: an inference engine, for which it is exported
    into a cache, or MindSpore. `start` is called before MindSpore is used. Raises ValueError for a
    file that does not fit the config file.
    """
    path = file.path if isinstance(file, CheckpointFile) else Path(file)
    is_eager = cfg.run.mode == "eager"
    if is_eager and path.suffix in (".onnx", ".mindir"):
        raise ValueError(f"run.mode eager computes a checkpoint, not {path}")
    if path.suffix == ".onnx":
        return load_onnx(path, network=network, cfg=cfg)
    engine = choose_engine(cfg.run)
    if path.suffix == ".mindir":
        if engine in ENGINES and (cfg.run.engine, cfg.run.engine_precision) != ("auto", "f32"):
            raise ValueError(f"run.engine: {engine} cannot run {path}; export it to ONNX")
        start()
        from utils.inference.mindir import load_mindir

        return load_mindir(path, network, cfg)
    content = file if isinstance(file, CheckpointFile) else open_weights(path)
    assert isinstance(content, CheckpointFile)
    checkpoint = Checkpoint(network, cfg, content, start, for_features=True)
    scorer: Scorer
    if engine != "mindspore":
        scorer = CachedScorer(checkpoint, engine)
    else:
        if is_eager:
            log.info("run.mode eager: MindSpore computes the network, operator by operator")
        elif cfg.run.engine == "auto" and cfg.run.device == "CPU":
            log.info("run.engine auto: MindSpore computes the network; openvino is not installed")
        net = checkpoint.load(cfg.run.amp_level, dtype=cfg.run.amp_dtype)
        scorer = CellScorer(net, str(path))
    scorer.has_classifier = checkpoint.has_classifier
    return scorer


class CachedScorer(Scorer):
    """The network of a checkpoint, computed by `engine` in `run.engine_precision`.

    The first call opens the file in the cache, or exports it. If that fails, `run.engine` is auto
    and the precision f32, MindSpore computes the network, in float32.

    Raises ValueError for a checkpoint that does not fit.
    """

    def __init__(self, checkpoint: Checkpoint, engine: str):
        self.checkpoint = checkpoint
        self.network = checkpoint.network
        self.cfg = checkpoint.cfg
        self.name = str(checkpoint.file.path)
        self.engine = engine
        self.load = functools.lru_cache(maxsize=2)(self.build)
        self.folder = get_cache_folder() / "onnx"
        self.scorers: dict[tuple, Scorer] = {}  # by the shape of a clip
        self.key = compute_key(self.network.name, self.cfg, checkpoint.file.digest)
        if not list(self.folder.glob(f"{self.key}-*.onnx")):
            self.load("O0")  # a checkpoint that does not fit is an error before videos are read

    def build(self, level: str, rewrite: Optional[Callable] = None) -> "nn.Cell":
        """The network; reads the file again if its arrays are no longer in memory."""
        file = self.checkpoint.file
        if not file.arrays:
            file = read_checkpoint(file.path)
            if file.digest != self.checkpoint.file.digest:
                raise ValueError(f"{self.name} has changed since it was read: begin again")
        return replace(self.checkpoint, file=file).load(level, rewrite)

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        return self.get_scorer(clips)(clips)

    def features(self, clips: np.ndarray) -> np.ndarray:
        return self.get_scorer(clips).features(clips)

    def get_scorer(self, clips: np.ndarray) -> Scorer:
        """The scorer for clips of this shape, opened once."""
        shape = clips.shape[1:]
        if shape not in self.scorers:
            self.scorers[shape] = self.open(clips.shape)
        return self.scorers[shape]

    def open(self, shape: tuple[int, ...], online: bool = False) -> Scorer:
        """The scorer for clips like the first ones, of this shape; `online`: for frames."""
        clip = shape[1:]
        precision = self.cfg.run.engine_precision
        try:
            form = f"{'x'.join(map(str, clip))}{'-online' if online else ''}-{self.engine}"
            file = self.folder / f"{self.key}-{form}.onnx"
            write = functools.partial(self.export, clip, file, online)
            find_or_write(file, f"exporting the network for {ENGINES[self.engine]}", write)
            classes = count_classes(self.cfg)
            scorer = OnnxScorer(file, (0, *clip), classes, engine=self.engine, precision=precision)
            if online:
                scorer.shape = shape
                scorer.buffers = read_description(file)[-1]
            scorer.open_session(shape)
        except (RuntimeError, ValueError) as error:
            if precision != "f32":
                raise ValueError(f"run.engine_precision: {error}") from None
            if self.cfg.run.engine != "auto":
                raise ValueError(f"run.engine: {error}") from None
            log.warning("run.engine auto: MindSpore computes the network: %s", error)
            return CellScorer(self.load("O0"), self.name)
        self.load.cache_clear()
        self.checkpoint = replace(self.checkpoint, file=self.checkpoint.file._replace(arrays={}))
        log.info("%s computes the network, in %s", ENGINES[self.engine], PRECISIONS[precision])
        return scorer

    def export(self, clip: tuple[int, ...], file: Path, online: bool) -> None:
        spec = replace(self.network.describe_export(self.cfg, online), clip=clip)
        spec.write_onnx(self.load, file, self.engine, self.network.name)


def find_or_write(file: Path, work: str, write: Callable[[], None]) -> None:
    """Leaves a sound file in the cache, which this process or one that was faster writes.

    `work` says in the log what `write` does.
    """
    if not is_sound(file):
        with report_write_errors(file.parent, "the cache of exported networks"):
            file.parent.mkdir(parents=True, exist_ok=True)
            waiting = functools.partial(log.info, f"waiting for another process, {work} ...")
            with wait_for_lock(file.parent, waiting, LONGEST_WAIT):  # of several ranks, one works
                if not is_sound(file):
                    log.info("%s, once ...", work)
                    write()
                    delete_old_files(file.parent)  # under the lock: no other export is running
    with contextlib.suppress(OSError):  # the cache may be read-only
        os.utime(file)


def is_sound(file: Path) -> bool:
    """Whether the file exists with the right checksum."""
    with contextlib.suppress(ValueError):
        return check_checksum(file)
    return False


def delete_old_files(folder: Path, count: int = KEPT_FILES) -> None:
    """Deletes all but the last used files of the cache, and what a killed export left."""
    for scratch in folder.glob(".*.tmp"):
        shutil.rmtree(scratch, ignore_errors=True)
    exported = [file for file in folder.iterdir() if OWN_NAME.fullmatch(file.name)]
    files = sorted(exported, key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[count:]:
        file.unlink(missing_ok=True)
