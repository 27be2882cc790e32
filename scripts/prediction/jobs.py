"""Predictions as jobs of a Dask cluster: each process of a worker loads the network once."""

import functools
import hashlib
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from scripts.executors.process_pool import CrashError, run_all
from scripts.prediction.records import Job, Predictor
from utils.api import build_model
from utils.config import NetworkConfig
from utils.networks import find_network


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

    def build_predictor(self) -> Predictor:
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
    settings: PredictSettings, executor: str, jobs: list[Job]
) -> Iterator[tuple[Job, dict]]:
    """`Predictor.run_jobs` by an executor of `run_all`; a crashed job is a broken video."""
    data = pickle.dumps(settings)
    results = run_all(
        predict_video, jobs=[(data, job) for job in jobs], workers=1, executor=executor
    )
    for (_, job), result in results:
        crashed = isinstance(result, CrashError)
        yield job, {"video": job[0], "error": f"{job[0]}: {result}"} if crashed else result


def predict_video(task: tuple[bytes, Job]) -> dict:
    data, job = task
    ((_, record),) = load_predictor(data).run_jobs([job])
    return record


@functools.lru_cache(1)
def load_predictor(data: bytes) -> Predictor:
    return pickle.loads(data).build_predictor()
