"""Checkpoints run by OpenVINO or ONNX Runtime: exported once, into a cache.

The cache is `.cache/onnx` of the checkout. A file takes any number of clips. Its name is a checksum
of the weights, the settings of the network and the code that exports it, then the shape of a clip,
then the engine that has run it.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Callable, Optional

import numpy as np

from utils.config import ROOT, get_base_folder
from utils.export.engine import ENGINES, OnnxNetwork
from utils.files import compute_sha256, report_write_errors
from utils.log import log
from utils.weights.model_checksum import check_checksum

KEPT_FILES = 8  # in the cache, the last used ones
LONGEST_WAIT = 600  # seconds for the export of another process
CODE = ("utils/export/*.py", "utils/nn/*.py", "utils/weights/*.py")  # with that of the network
# Seconds on two cores, fitted to the table in docs/measured/export.md. The number of arrays of
# weights stands for that of operators.
SAVED_BY_MULTIPLY_ADD = 1.2e-11  # of an evaluation, by an engine
SAVED_BY_ARRAY = 5e-5  # for each clip: MindSpore's time between operators
EXPORT_BY_ARRAY = 0.06  # beyond MindSpore's own compilation


class CachedNetwork:
    """The network of a checkpoint, computed by an engine in float32.

    Called with uint8 clips (N, ...), as an OnnxNetwork. The first call opens the file in the cache,
    or exports it. The first of `engines` that can run the file computes it. With `run.engine` auto,
    MindSpore computes the network, in float32, if no engine can, or if an evaluation of `clips`
    clips would be shorter than the export.

    `load(level, **changes)` builds the network of the checkpoint. Raises ValueError for a
    checkpoint that does not fit, or that changes while it is read.
    """

    def __init__(
        self,
        network: Any,
        cfg: Any,
        path: Path,
        engines: Sequence[str],
        load: Callable,
        clips: Optional[int] = None,
    ):
        self.network = network
        self.cfg = cfg
        self.path = path
        self.engines = engines
        self.load = functools.cache(functools.partial(self.load_unchanged, load))
        self.counts = cfg.model_arguments()["num_classes"]
        self.clips = clips
        self.engine = engines[0]
        self.folder = get_base_folder() / ".cache" / "onnx"
        self.networks: dict[tuple, Callable] = {}  # by the shape of a clip
        self.digest = compute_sha256(path) if os.path.isfile(path) else ""
        self.key = compute_key(network.name, cfg, self.digest)
        if not list(self.folder.glob(f"{self.key}-*.onnx")):
            self.load("O0")  # a checkpoint that does not fit is an error before videos are read

    def load_unchanged(self, load: Callable, level: str, **changes: Any) -> Any:
        """The network; ValueError if its weights are not those of the key."""
        net = load(level, **changes)
        if compute_sha256(self.path) != self.digest:
            raise ValueError(f"{self.path} has changed while it was read; run the command again")
        return net

    def set_train(self, mode: bool) -> None:
        """The network is for evaluation only."""

    def __call__(self, clips: np.ndarray) -> Any:
        shape = clips.shape[1:]
        if shape not in self.networks:
            self.networks[shape] = self.open(clips.shape)
        return self.networks[shape](clips)

    def open(self, shape: tuple[int, ...]) -> Callable:
        """A function from clips to scores. `shape` is that of the first clips."""
        clip = shape[1:]
        is_auto = self.cfg.run.engine == "auto"
        try:
            file = self.find(clip)
            if not file and is_auto and not self.export_pays(clip):
                return self.run_by_mindspore
            file = file or self.export_once(clip)
            self.engine = get_engine_of(file)
            net = OnnxNetwork(file, self.engine, self.counts, (0, *clip))
            net.open_session(shape)
        except (RuntimeError, ValueError) as error:
            if not is_auto:
                raise ValueError(f"run.engine: {error}") from None
            log.warning("run.engine auto: MindSpore computes the network: %s", error)
            return self.run_by_mindspore
        log.info("%s computes the network, in float32", ENGINES[self.engine])
        return net

    def find(self, clip: tuple[int, ...]) -> Optional[Path]:
        """The sound file for clips of this shape, by the first engine that has one."""
        files = (self.name_file(clip, engine) for engine in self.engines)
        file = next((file for file in files if is_sound(file)), None)
        if file:
            with contextlib.suppress(OSError):  # the cache may be read-only
                os.utime(file)
        return file

    def name_file(self, clip: tuple[int, ...], engine: str) -> Path:
        return self.folder / f"{self.key}-{'x'.join(map(str, clip))}-{engine}.onnx"

    def export_pays(self, clip: tuple[int, ...]) -> bool:
        """Whether an engine would save more time in this evaluation than the export takes."""
        if self.clips is None:
            return True
        from utils.complexity import count_multiply_adds

        net = self.load("O0")
        arrays = len(list(net.get_parameters()))
        by_clip = count_multiply_adds(net, clip) * SAVED_BY_MULTIPLY_ADD + arrays * SAVED_BY_ARRAY
        pays = self.clips * by_clip > arrays * EXPORT_BY_ARRAY
        if not pays:
            log.info(
                "run.engine auto: MindSpore computes the network: for %d clips, to export it for "
                "%s would take longer",
                self.clips,
                ENGINES[self.engine],
            )
        return pays

    def export_once(self, clip: tuple[int, ...]) -> Path:
        """The file that this process, or another one that was faster, exports."""
        with report_write_errors(self.folder, "the cache of exported networks"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with hold_lock(self.folder):  # of several ranks, one exports
                file = self.find(clip)
                if not file:
                    file = self.export(clip)
                    self.load.cache_clear()  # its memory
                    delete_old_files(self.folder)  # under the lock: no other export is running
        return file

    def export(self, clip: tuple[int, ...]) -> Path:
        """The file of the first engine that can run it."""
        from utils.export.engine_process import EngineError
        from utils.export.export import ExportOptions, export

        spec = replace(self.network.describe_export(self.cfg), clip=clip)
        for engine, other in zip(self.engines, [*self.engines[1:], ""]):
            file = self.name_file(clip, engine)
            log.info("exporting the network for %s, once ...", ENGINES[engine])
            try:
                options = ExportOptions("onnx", file, 0, "uint8", "fp32", [engine])
                export(self.load, spec, options, self.network.name)
                return file
            except EngineError as error:
                if not other:
                    raise
                log.warning("%s", error)
        raise ValueError("no engine is installed")

    def run_by_mindspore(self, clips: np.ndarray) -> Any:
        from mindspore import Tensor

        scores = self.load("O0")(Tensor(clips))
        return tuple(s.asnumpy() for s in scores) if isinstance(scores, tuple) else scores.asnumpy()


def compute_key(network: str, cfg: Any, weights: str) -> str:
    """A checksum of all that decides the exported network, except the shape of its clips.

    `weights` is the checksum of the checkpoint.
    """
    digest = hashlib.blake2b(digest_size=16)
    for pattern in (f"{network}/*.py", *CODE):
        for file in sorted(ROOT.glob(pattern)):
            digest.update(file.read_bytes())
    settings = sorted(cfg.model_arguments().items())
    digest.update(repr((weights, settings, version("mindspore"))).encode())
    return digest.hexdigest()


def get_engine_of(file: Path) -> str:
    """The engine in the name of a file of the cache."""
    return file.stem.rpartition("-")[2]


def is_sound(file: Path) -> bool:
    """Whether the file exists with the right checksum."""
    try:
        return check_checksum(file)
    except ValueError:
        return False


@contextlib.contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Waits for the lock of the cache; ValueError if another process keeps it too long."""
    with open(folder / ".lock", "w") as lock:
        start = time.monotonic()
        is_waiting = False
        while not try_lock(lock):
            if not is_waiting:
                log.info("waiting for another process, which exports a network ...")
            is_waiting = True
            if time.monotonic() - start > LONGEST_WAIT:
                raise ValueError(
                    f"another process has held {lock.name} for {LONGEST_WAIT} s; end that process"
                )
            time.sleep(0.1)
        yield


def try_lock(file: IO) -> bool:
    """Locks an open file, until it is closed; False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def delete_old_files(folder: Path, kept: int = KEPT_FILES) -> None:
    """Deletes all but the last used files, and what a killed export left."""
    for scratch in folder.glob(".*.onnx.tmp"):
        shutil.rmtree(scratch, ignore_errors=True)
    files = sorted(folder.glob("*.onnx"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[kept:]:
        file.unlink(missing_ok=True)
