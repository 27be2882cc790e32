"""The features of videos as jobs: each process loads the network once."""

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Optional

import numpy as np

from scripts.executors.process_pool import PROCESSES
from scripts.prediction.jobs import run_on_cluster
from utils import runtime
from utils.api import Model, build_model
from utils.config import NetworkConfig, VideoData
from utils.data.annotation_file import Record
from utils.data.loader import count_workers
from utils.data.records import open_record
from utils.evaluate.predict import (
    Window,
    compute_features,
    read_ahead,
    read_windows,
    split_into_windows,
)
from utils.networks import find_network
from utils.video.reader import FrameReader, VideoError

DTYPE = "<f4"  # float32


class FeatureSettings(NamedTuple):
    """The options of scripts/extract_features.py for the network `network` with settings `cfg`.

    `head` is the index of the head whose views are used. `listed`: the videos are lines of a list.
    """

    network: str
    cfg: NetworkConfig
    checkpoint_path: str
    head: int
    listed: bool
    per: str
    window: Optional[float]
    step: Optional[float]

    def build_runner(self) -> "FeatureExtractor":
        network = find_network(self.network)
        return FeatureExtractor(self, build_model(network, self.cfg, self.checkpoint_path))

    def compute_digest(self) -> str:
        """Changes with every setting, and with the size or time of the checkpoint."""
        stat = os.stat(self.checkpoint_path)
        content = repr((self, stat.st_size, stat.st_mtime_ns))
        return hashlib.sha256(content.encode()).hexdigest()

    def run_jobs(self, executor: str, jobs: list[Record]) -> Iterator[tuple[Record, dict]]:
        """Yields (job, record) in any order. Loads no network if there is no job."""
        if executor != PROCESSES:
            return run_on_cluster(self, executor, jobs)
        return self.build_runner().run_jobs(jobs) if jobs else iter(())


class FeatureExtractor:
    """Computes the rows of videos with one network, and decodes the next videos meanwhile."""

    def __init__(self, settings: FeatureSettings, model: Model):
        self.settings = settings
        self.model = model
        self.head = model.heads[settings.head]

    def run_jobs(self, jobs: list[Record]) -> Iterator[tuple[Record, dict]]:
        """The record of each job: `times`, `width`, `features`; or `video` and `error`."""
        workers = count_workers(self.settings.cfg.data.workers)
        for job, parts in read_ahead(self.read, jobs, workers):
            try:
                yield job, self.compute(parts)
            except VideoError as error:
                yield job, {"video": job.path, "error": str(error)}

    def read(self, job: Record) -> Iterator[tuple[Window, list[np.ndarray]]]:
        """The windows of a video with their views."""
        settings = self.settings
        with self.open(job) as source:
            seconds = settings.window if settings.per == "window" else 0.0
            windows = split_into_windows(source, seconds, settings.step)
            yield from read_windows(source, windows, [self.head])

    def open(self, job: Record) -> FrameReader:
        data = self.settings.cfg.data
        if not self.settings.listed:
            return self.model.open(job.path)
        assert isinstance(data, VideoData)
        return open_record(job, data)

    @runtime.guest()
    def compute(self, parts: Iterable[tuple[Window, list[np.ndarray]]]) -> dict:
        times = []
        rows = []
        for window, (views,) in parts:
            spans, features = compute_features(
                self.model.scorer,
                head=self.head,
                window=window,
                views=views,
                per=self.settings.per,
            )
            rows.append(features)
            is_image = window.length == 1 and not window.fps
            times += [["", ""] if is_image else [f"{time:.3f}" for time in span] for span in spans]
        values = np.concatenate(rows).astype(DTYPE)
        data = base64.b64encode(values.tobytes()).decode()
        return {"times": times, "width": values.shape[1], "features": data}
