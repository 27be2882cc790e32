"""Lists of videos as MindData sources: the order of a run, broken videos, a full last batch.

A room says what one row is; here stands what all rooms do alike.
"""

import abc
from collections.abc import Sequence
from typing import Any, Optional

import mindspore.dataset as ds
import numpy as np

from utils.data.annotation_file import ListFile, Record
from utils.data.loader import generator
from utils.data.packed.sampler import PackedSampler, shards_of, storage_order
from utils.data.sampler import TrainSampler, sample_rng, shard_for_eval
from utils.data.unreadable_videos import BadVideos
from utils.log import log
from utils.nn.dropout import DropoutFactors
from utils.runtime import Runtime
from utils.video.decoders import VideoError

TRIES = 100  # other videos tried in place of one that cannot be read


def train_sampler(cfg, records: Sequence, rt: Runtime) -> TrainSampler:
    """The order of a run over these records; that of packed ones reads shards from end to end."""
    form = (len(records), cfg.data.batch, rt.rank, rt.size, rt.seed)
    if cfg.data.packed is None:
        return TrainSampler(*form)
    parts = rt.size * cfg.train.accumulate
    shards = shards_of(records)
    sampler = PackedSampler(*form, group=cfg.data.batch * parts, shards=shards)
    for count in {len(each) for each in shards}:
        if count % parts:
            log.info("data.packed: %d shards for %d parts: ranks share some of them", count, parts)
    if sampler.epoch_samples < 0.98 * sampler.samples:
        log.info(
            "data.packed: an epoch takes %d of %d samples", sampler.epoch_samples, sampler.samples
        )
    return sampler


class TrainVideos(abc.ABC):
    """Random-access training rows; index 0 is the first of the tape after `skip` batches.

    A row is a function of seed, epoch and sample alone. A video that cannot be read is replaced by
    another one, drawn; nothing is drawn twice for one that is known to be bad.
    """

    columns = ("clip", "label")

    def __init__(self, records: list[Record], cfg, sampler: TrainSampler, epochs: int, skip: int):
        self.records, self.cfg, self.data, self.sampler = records, cfg, cfg.data, sampler
        self.first = skip * sampler.batch
        self.length = epochs * sampler.steps_per_epoch * sampler.batch - self.first
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
        sample, epoch = self.sampler.sample_at(self.first + int(index))
        return sample, sample_rng(self.sampler.seed, epoch, sample)

    def find_fault(self) -> str:
        """Why the training must stop, or an empty string: too many videos are unreadable."""
        return self.bad.over(self.data.bad_limit)

    def dataset(self, dropout: Optional[DropoutFactors] = None) -> Optional[ds.Dataset]:
        """The rest of the run in batches; None if nothing is left.

        With a network that has dropout, rows end in the factors of its layers.
        """
        if len(self) == 0:
            return None
        rows, columns = self, self.columns
        if dropout is not None and dropout.size:
            rows, columns = RowsWithDropout(self, dropout), (*columns, "dropout")
        return generator(rows, columns, rows.blank(), self.data, self.data.batch)

    def list_class_settings(self) -> list[tuple[ListFile, Any]]:
        """Annotation files of the training, each with the settings that mirror its clips."""
        return []

    @abc.abstractmethod
    def frames(self, record: Record, rng: np.random.RandomState) -> np.ndarray:
        """What is decoded of a video; the first to draw from `rng`."""

    @abc.abstractmethod
    def row(self, record: Record, rng: np.random.RandomState) -> tuple:
        """One training row, a value for each of `columns`."""

    @abc.abstractmethod
    def blank(self) -> tuple:
        """A row of the same shapes."""


class RowsWithDropout:
    """Training rows, each followed by its dropout factors, float32 (copies, K)."""

    def __init__(self, rows: TrainVideos, dropout: DropoutFactors):
        self.rows, self.dropout = rows, dropout
        self.copies = getattr(rows.data, "copies", 1)  # clips of a video

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple:
        position = self.rows.sampler.global_position(self.rows.first + int(index))
        return (*self.rows[index], self.dropout.draw(position, self.copies))

    def blank(self) -> tuple:
        return (*self.rows.blank(), np.ones((self.copies, self.dropout.size), np.float32))


class EvalVideos(abc.ABC):
    """Random-access evaluation rows (clips, label, valid): all views of one video."""

    def __init__(self, records: list[Record], cfg, rt: Runtime, shape: tuple[int, ...]):
        """`shape` is that of a video's views, (V, ...)."""
        self.records, self.cfg, self.shape = records, cfg, shape
        stored = storage_order(records)
        self.mine = shard_for_eval(len(records), cfg.eval.batch, rt.rank, rt.size, stored)
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
        return self.blank()

    def blank(self) -> tuple[np.ndarray, np.int32, np.bool_]:
        return np.zeros(self.shape, np.uint8), np.int32(0), np.bool_(False)

    def checked(self, record: Record, sample: int) -> np.ndarray:
        """A sum over too few views would be no worse to see than the right one."""
        views = self.views(record, sample)
        if views.shape != self.shape:
            raise AssertionError(f"{record.path}: views {views.shape} instead of {self.shape}")
        return views

    def dataset(self) -> ds.Dataset:
        """All rows in batches; the last is filled up."""
        columns = ("clips", "label", "valid")
        return generator(self, columns, self.blank(), self.cfg.data, self.cfg.eval.batch)

    @abc.abstractmethod
    def views(self, record: Record, sample: int) -> np.ndarray:
        """uint8 clips of the shape given at the start; one decode."""
