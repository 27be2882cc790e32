"""Checkpoints run by OpenVINO or ONNX Runtime: exported once, into a cache.

The cache is `.cache/onnx` of the checkout. The name of a file is a checksum of the weights, the
settings of the network and the code that exports it, and the shape of the clips. A file of the same
name with the suffix `.engine` has the name of the engine that is faster with it on this machine.
"""

import fcntl
import functools
import hashlib
import os
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Callable

import numpy as np

from utils.config import ROOT, get_base_folder
from utils.export.engine import ENGINES, OnnxNetwork, find_fastest, list_engines
from utils.files import report_write_errors, write_text
from utils.log import log
from utils.weights.model_checksum import check_checksum

KEPT_FILES = 8  # in the cache, the last used ones
CODE = ("utils/export/*.py", "utils/nn/*.py", "utils/weights/*.py")  # with that of the network


class CachedNetwork:
    """The network of a checkpoint, computed by an engine in float32.

    Called with uint8 clips (N, ...), as an OnnxNetwork. The first call with a shape opens its file
    in the cache, or exports it. `run.engine` auto takes the engine that was faster when the file
    was exported; if that failed, MindSpore computes the network.

    `load(level, **changes)` builds the network of the checkpoint. Raises ValueError for a
    checkpoint that does not fit.
    """

    def __init__(self, network: Any, cfg: Any, path: Path, engine: str, load: Callable):
        self.network, self.cfg, self.engine = network, cfg, engine
        self.load = functools.cache(load)
        self.folder = get_base_folder() / ".cache" / "onnx"
        self.counts = cfg.model_arguments()["num_classes"]
        self.networks: dict[tuple, Callable] = {}  # by the shape of the clips
        self.key = compute_key(network.name, cfg, path) if os.path.isfile(path) else ""
        if not list(self.folder.glob(f"{self.key}-*.onnx")):
            self.load("O0")  # a checkpoint that does not fit is an error before videos are read

    def set_train(self, mode: bool) -> None:
        """The network is for evaluation only."""

    def __call__(self, clips: np.ndarray) -> Any:
        if clips.shape not in self.networks:
            self.networks[clips.shape] = self.open(clips.shape)
        return self.networks[clips.shape](clips)

    def open(self, shape: tuple[int, ...]) -> Callable:
        """A function from clips of this shape to scores."""
        try:
            file = self.find_or_export(shape)
            if self.cfg.run.engine == "auto":
                self.engine = file.with_suffix(".engine").read_text()
            net = OnnxNetwork(file, self.engine, self.counts, shape)
            net.open_session(shape)
        except (RuntimeError, ValueError) as error:
            if self.cfg.run.engine != "auto":
                raise ValueError(f"run.engine: {error}") from None
            log.warning("run.engine auto: MindSpore computes the network: %s", error)
            return self.run_by_mindspore
        log.info("%s computes the network, in float32", ENGINES[self.engine])
        return net

    def find_or_export(self, shape: tuple[int, ...]) -> Path:
        """The ONNX file for clips of this shape."""
        file = self.folder / f"{self.key}-{'x'.join(map(str, shape))}.onnx"
        with report_write_errors(file, "run.engine"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / ".lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # of several ranks, one exports
                if not is_sound(file):
                    log.info("exporting the network for %s, once ...", " and ".join(list_engines()))
                    self.export(file, shape)
                    self.load.cache_clear()  # its memory
                    delete_old_files(self.folder)  # under the lock: no other export is running
                choice, is_auto = file.with_suffix(".engine"), self.cfg.run.engine == "auto"
                if is_auto and (not choice.exists() or choice.read_text() not in list_engines()):
                    write_text(choice, find_fastest(file, shape))
                os.utime(file)
        return file

    def export(self, file: Path, shape: tuple[int, ...]) -> None:
        from utils.export.export import ExportOptions, export

        spec = replace(self.network.export.describe_export(self.cfg), clip=shape[1:])
        options = ExportOptions("onnx", file, shape[0], "uint8", "fp32")
        export(self.load, spec, options, self.network.name)

    def run_by_mindspore(self, clips: np.ndarray) -> Any:
        from mindspore import Tensor

        scores = self.load(self.cfg.run.amp_level)(Tensor(clips))
        return tuple(s.asnumpy() for s in scores) if isinstance(scores, tuple) else scores.asnumpy()


def compute_key(network: str, cfg: Any, path: Path) -> str:
    """A checksum of all that decides the exported network, but for the shape of its clips."""
    digest = hashlib.blake2b(digest_size=16)
    for pattern in (f"{network}/*.py", *CODE):
        for file in sorted(ROOT.glob(pattern)):
            digest.update(file.read_bytes())
    digest.update(Path(path).read_bytes())
    digest.update(repr((sorted(cfg.model_arguments().items()), version("mindspore"))).encode())
    return digest.hexdigest()


def is_sound(file: Path) -> bool:
    """Whether the file exists with the right checksum."""
    try:
        return check_checksum(file)
    except ValueError:
        return False


def delete_old_files(folder: Path, kept: int = KEPT_FILES) -> None:
    """Deletes all but the last used files, and what a killed export left."""
    for scratch in folder.glob(".*.onnx.tmp"):
        shutil.rmtree(scratch, ignore_errors=True)
    files = sorted(folder.glob("*.onnx"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[kept:]:
        file.unlink(missing_ok=True)
        file.with_suffix(".engine").unlink(missing_ok=True)
