"""Checkpoints run by OpenVINO or ONNX Runtime: exported once, into a cache.

A file takes any number of clips. Its name is `compute_key`, then the shape of a clip, then the
inference engine that has run it.
"""

import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

import numpy as np

from utils.files import compute_sha256, get_cache_folder
from utils.log import log
from utils.scoring.cached_files import compute_key, find_or_write
from utils.scoring.checkpoint import Checkpoint
from utils.scoring.engines import ENGINES, OnnxScorer, read_description
from utils.scoring.exported_file import count_classes
from utils.scoring.scorer import CellScorer, Scorer

if TYPE_CHECKING:
    from mindspore import nn

PRECISIONS = {"f32": "float32", "bf16": "bfloat16"}


class CachedScorer(Scorer):
    """The network of a checkpoint, computed by `engine` in `run.engine_precision`.

    The first call opens the file in the cache, or exports it. If that fails, `run.engine` is auto
    and the precision f32, MindSpore computes the network, in float32.

    Raises ValueError for a checkpoint that does not fit, or that changes while it is read.
    """

    def __init__(self, checkpoint: Checkpoint, engine: str):
        self.checkpoint = checkpoint
        self.network = checkpoint.network
        self.cfg = checkpoint.cfg
        self.path = Path(checkpoint.path)
        self.name = checkpoint.path
        self.engine = engine
        self.nets: dict[tuple, nn.Cell] = {}  # loaded ones, by the arguments of `load`
        self.folder = get_cache_folder() / "onnx"
        self.scorers: dict[tuple, Scorer] = {}  # by the shape of a clip
        self.digest = compute_sha256(self.path) if os.path.isfile(self.path) else ""
        self.key = compute_key(self.network.name, self.cfg, self.digest)
        if not list(self.folder.glob(f"{self.key}-*.onnx")):
            self.load("O0")  # a checkpoint that does not fit is an error before videos are read

    def load(self, level: str, rewrite: Optional[Callable] = None) -> "nn.Cell":
        """The network, loaded once; ValueError if its weights are not those of the key."""
        if (level, rewrite) not in self.nets:
            net = self.checkpoint.load(level, rewrite)
            if compute_sha256(self.path) != self.digest:
                raise ValueError(
                    f"{self.path} has changed while it was read; run the command again"
                )
            self.nets[level, rewrite] = net
        return self.nets[level, rewrite]

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
        log.info("%s computes the network, in %s", ENGINES[self.engine], PRECISIONS[precision])
        return scorer

    def export(self, clip: tuple[int, ...], file: Path, online: bool) -> None:
        spec = replace(self.network.describe_export(self.cfg, online), clip=clip)
        spec.write_onnx(self.load, file, self.engine, self.network.name)
        self.nets.clear()  # their memory
