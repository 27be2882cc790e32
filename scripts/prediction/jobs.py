"""Predictions as jobs of a Dask cluster: each process of a worker loads the network once.

`run_on_cluster` also runs the jobs of scripts/extract_features.py.
"""

import functools
import hashlib
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional, Protocol

from scripts.executors.part_files import JobT
from scripts.executors.process_pool import CrashError, run_all
from scripts.prediction.records import Predictor
from utils.api import build_model
from utils.config import NetworkConfig
from utils.networks import find_network


class JobRunner(Protocol):
    """Does jobs whose first value is the path of a video."""

    def run_jobs(self, jobs: list) -> Iterator[tuple[Any, dict]]:
        """The record of each job; that of a broken video has `video` and `error`."""


class JobSettings(Protocol):
    """What a worker needs to do the jobs of a command; it is pickled."""

    def build_runner(self) -> JobRunner:
        """Loads the network."""


class PredictSettings(NamedTuple):
    """The options of scripts/predict.py for the network `network` with the settings `cfg`."""

    network: str
    cfg: NetworkConfig
    checkpoint_path: str
    labels: str
    folder: Path
    top: int
    window: Optional[float]
    step: Optional[float]

    def build_runner(self) -> Predictor:
        model = build_model(
            find_network(self.network),
            cfg=self.cfg,
            checkpoint=self.checkpoint_path,
            labels=self.labels,
        )
        return Predictor(
            model, folder=self.folder, top=self.top, window=self.window, step=self.step
        )

    def compute_digest(self) -> str:
        """Changes with every setting, and with the size or time of the files that they name."""
        stats = [os.stat(path) for path in (self.checkpoint_path, self.labels) if path]
        files = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
        return hashlib.sha256(repr((self, files)).encode()).hexdigest()


def run_on_cluster(
    settings: JobSettings, executor: str, jobs: list[JobT]
) -> Iterator[tuple[JobT, dict]]:
    """`JobRunner.run_jobs` by an executor of `run_all`; a crashed job is a broken video."""
    data = pickle.dumps(settings)
    results = run_all(run_job, jobs=[(data, job) for job in jobs], workers=1, executor=executor)
    for (_, job), result in results:
        crashed = isinstance(result, CrashError)
        yield job, {"video": job[0], "error": f"{job[0]}: {result}"} if crashed else result


def run_job(task: tuple[bytes, Any]) -> dict:
    data, job = task
    ((_, record),) = load_runner(data).run_jobs([job])
    return record


@functools.lru_cache(1)
def load_runner(data: bytes) -> JobRunner:
    return pickle.loads(data).build_runner()
