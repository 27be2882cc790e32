"""Lists of videos as MindData sources: the order of a run, broken videos, a full last batch.

A room says what one row is; here stands what all rooms do alike.
"""

import abc
import os
from collections.abc import Sequence
from typing import Any, Optional

import mindspore.dataset as ds
import numpy as np

from utils.bad_videos import BadVideos
from utils.lists import Record
from utils.order import Order, sample_rng, share
from utils.run_log import log
from utils.runtime import Runtime
from utils.video import VideoError

TRIES = 100  # other videos tried in place of one that cannot be read


class TrainVideos(abc.ABC):
    """Random-access training rows; index 0 is the first of the tape after `skip` batches.

    A row is a function of seed, epoch and sample alone. A video that cannot be read is replaced by
    another one, drawn; nothing is drawn twice for one that is known to be bad.
    """

    columns = ("clip", "label")

    def __init__(self, records: list[Record], cfg, order: Order, epochs: int, skip: int):
        self.records, self.data, self.order = records, cfg.data, order
        self.first = skip * order.batch
        self.length = epochs * order.steps_per_epoch * order.batch - self.first
        self.bad = BadVideos([record.path for record in records])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple:
        sample, rng = self.draw(index)
        for _ in range(TRIES):
            if not self.bad.is_bad(sample):
                try:
                    return self.row(self.records[sample], rng)
                except VideoError as error:
                    self.bad.add(sample, str(error))
            sample = rng.randint(len(self.records))
        return self.blank()  # nothing is readable: the run is about to stop (data.bad_limit)

    def decode(self, index: int) -> np.ndarray:
        """Only the frames of a row, for measuring: the floor under `self[index]`."""
        sample, rng = self.draw(index)
        return self.frames(self.records[sample], rng)

    def draw(self, index: int) -> tuple[int, np.random.RandomState]:
        """The sample at a place of the tape, and its source of chance."""
        sample, epoch = self.order.at(self.first + int(index))
        return sample, sample_rng(self.order.seed, epoch, sample)

    def dataset(self) -> Optional[ds.Dataset]:
        """The rest of the run in batches; None where nothing is left."""
        if len(self) == 0:
            return None
        rows = generator(self, self.columns, self.data, self.data.batch)
        return rows.batch(self.data.batch, drop_remainder=True)

    @abc.abstractmethod
    def frames(self, record: Record, rng: np.random.RandomState) -> np.ndarray:
        """What is decoded of a video; the first to draw from `rng`."""

    @abc.abstractmethod
    def row(self, record: Record, rng: np.random.RandomState) -> tuple:
        """One training row, a value for each of `columns`."""

    @abc.abstractmethod
    def blank(self) -> tuple:
        """A row of the same shapes."""


class EvalVideos(abc.ABC):
    """Random-access evaluation rows (clips, label, valid): all views of one video."""

    def __init__(self, records: list[Record], cfg, rt: Runtime, shape: tuple[int, ...]):
        """`shape` is that of a video's views, (V, ...)."""
        self.records, self.cfg, self.shape = records, cfg, shape
        self.mine = share(len(records), cfg.eval.batch, rt.rank, rt.size)
        self.bad = BadVideos([record.path for record in records])

    def __len__(self) -> int:
        return len(self.mine)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32, np.bool_]:
        sample = self.mine[int(index)]
        if sample is not None:
            record = self.records[sample]
            try:
                return self.checked(record, sample), np.int32(record.label), np.bool_(True)
            except VideoError as error:
                self.bad.add(sample, str(error))
        return np.zeros(self.shape, np.uint8), np.int32(0), np.bool_(False)

    def checked(self, record: Record, sample: int) -> np.ndarray:
        """A sum over too few views would be no worse to see than the right one."""
        views = self.views(record, sample)
        if views.shape != self.shape:
            raise AssertionError(f"{record.path}: views {views.shape} instead of {self.shape}")
        return views

    def dataset(self) -> ds.Dataset:
        """All rows in batches; the last is filled up."""
        batch = self.cfg.eval.batch
        columns = ("clips", "label", "valid")
        return generator(self, columns, self.cfg.data, batch).batch(batch)

    @abc.abstractmethod
    def views(self, record: Record, sample: int) -> np.ndarray:
        """uint8 clips of the shape given at the start; one decode."""


def generator(source: Any, columns: Sequence[str], data, batch: int) -> ds.GeneratorDataset:
    """MindData over a random-access source, in its order; workers are capped at the cores."""
    ds.config.set_prefetch_size(data.prefetch * batch)
    workers = min(data.workers, os.cpu_count() or 1)
    if workers < data.workers:
        log.info("data.workers: %d instead of %d, one a core", workers, data.workers)
    return ds.GeneratorDataset(
        source,
        list(columns),
        sampler=ds.SequentialSampler(),
        num_parallel_workers=workers,
        python_multiprocessing=data.processes,
    )
