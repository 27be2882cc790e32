"""Annotated videos as MindData sources: sample sequence, unreadable videos, padded last batch.

The dataset.py of each network subclasses TrainVideos and EvalVideos, and defines what one row is:
which frames, which crops, which axes.
"""

import abc
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from utils.data.annotation_file import AnnotationFile, Record
from utils.data.loader import build_batch_dataset
from utils.data.packed.sampler import PackedSampler, group_by_shard, storage_order
from utils.data.sampler import TrainSampler, sample_rng, shard_for_eval
from utils.data.unreadable_videos import DamagedFrames, UnreadableVideos
from utils.log import log
from utils.runtime import Runtime
from utils.video.reader import FrameSource, VideoError

if TYPE_CHECKING:
    import mindspore.dataset as ds

    from utils.nn.dropout import DropoutFactors

MAX_TRIES = 100  # videos tried for one row, the one of the sample sequence included


def build_train_sampler(cfg, records: Sequence, rt: Runtime) -> TrainSampler:
    """The sampler of a training run over these records.

    That of packed videos assigns the shard files to the micro-batches of all ranks. Logs if several
    of them read the same shard file, and if an epoch leaves out more than 2 % of the samples.
    """
    common = (len(records), cfg.data.batch, rt.rank, rt.size, rt.seed)
    if cfg.data.packed is None:
        return TrainSampler(*common)
    parts = rt.size * cfg.train.accumulation_steps  # micro-batches of an update, over all ranks
    shards = group_by_shard(records)
    sampler = PackedSampler(*common, group=cfg.data.batch * parts, shards=shards)
    for count in {len(data_set) for data_set in shards}:
        if count % parts:
            log.info("data.packed: %d shards for %d parts: ranks share some of them", count, parts)
    if sampler.epoch_samples < 0.98 * sampler.samples:
        log.info(
            "data.packed: an epoch takes %d of %d samples", sampler.epoch_samples, sampler.samples
        )
    return sampler


class TrainVideos(abc.ABC):
    """Random-access training rows of one rank, for all remaining epochs of the run.

    A resumed run has trained the first `skip` batches already; index 0 is the row after them. The
    row depends on seed, epoch and sample only. An unreadable video is replaced by another one,
    chosen at random. Once a video is known to be unreadable, it is not read again.
    """

    columns = ("clip", "label")

    def __init__(self, records: list[Record], cfg, sampler: TrainSampler, epochs: int, skip: int):
        self.records = records
        self.cfg = cfg
        self.data = cfg.data
        self.sampler = sampler
        self.start = skip * sampler.batch  # position of index 0 in this rank's sequence
        self.length = epochs * sampler.steps_per_epoch * sampler.batch - self.start
        self.unreadable = UnreadableVideos([record.path for record in records])
        self.damaged = DamagedFrames()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple:
        sample, epoch = self.sampler.sample_at(self.start + int(index))
        # Its own generator, so that the replacement does not depend on what was read before.
        choices = np.random.RandomState([self.sampler.seed, epoch, sample, 1])
        for _ in range(MAX_TRIES):
            if not self.unreadable.is_unreadable(sample):
                try:
                    rng = sample_rng(self.sampler.seed, epoch, sample)
                    return self.make_row(self.records[sample], rng)
                except VideoError as error:
                    self.unreadable.add(sample, str(error))
            sample = choices.randint(len(self.records))
        return self.make_blank_row()  # with so many unreadable videos, `find_fault` stops the run

    @contextlib.contextmanager
    def count_damaged(self, source: FrameSource) -> Iterator[FrameSource]:
        """Closes the source at the end, and counts its frames that were marked as damaged."""
        with source as video:
            yield video
            self.damaged.add(video)

    def decode(self, index: int) -> np.ndarray:
        """Only the decoded frames of a row, for the benchmark of the data path."""
        sample, epoch = self.sampler.sample_at(self.start + int(index))
        rng = sample_rng(self.sampler.seed, epoch, sample)
        return self.read_frames(self.records[sample], rng)

    def find_fault(self) -> str:
        """Why the trainer must stop the run (too many unreadable videos), or an empty string."""
        return self.unreadable.describe_excess(self.data.max_unreadable)

    def dataset(self, dropout: "Optional[DropoutFactors]" = None) -> "Optional[ds.Dataset]":
        """The remaining batches of the run, with the columns of `append_dropout`, or None."""
        if len(self) == 0:
            return None
        rows, columns = self.append_dropout(dropout)
        return build_batch_dataset(rows, columns, rows.make_blank_row(), self.data, self.data.batch)

    def append_dropout(self, dropout: "Optional[DropoutFactors]") -> tuple[Any, tuple[str, ...]]:
        """(rows, columns), for a network with dropout with its factors as last column."""
        if dropout is None or not dropout.size:
            return self, self.columns
        return RowsWithDropout(self, dropout), (*self.columns, "dropout")

    def make_blank_batch(self, dropout: "Optional[DropoutFactors]" = None) -> list[np.ndarray]:
        """Zeros in the shapes and types of a batch of `dataset(dropout)`, to compile for."""
        blank = map(np.asarray, self.append_dropout(dropout)[0].make_blank_row())
        return [np.zeros((self.data.batch, *value.shape), value.dtype) for value in blank]

    def list_flip_settings(self) -> list[tuple[AnnotationFile, Any]]:
        """Annotation files of the training, each with its `flip` and `swap_labels` settings.

        The trainer logs advice if their class names have a left and a right. A network that mirrors
        clips overrides this.
        """
        return []

    @abc.abstractmethod
    def read_frames(self, record: Record, rng: np.random.RandomState) -> np.ndarray:
        """The decoded frames of a video. Like `decode`, `make_row` uses `rng` only after it."""

    @abc.abstractmethod
    def make_row(self, record: Record, rng: np.random.RandomState) -> tuple:
        """One training row: a value for each of `columns`."""

    @abc.abstractmethod
    def make_blank_row(self) -> tuple:
        """A row of the shapes and types of `make_row`, in place of a video that cannot be read."""


class RowsWithDropout:
    """Training rows, each followed by its dropout factors: float32 (copies, K)."""

    def __init__(self, rows: TrainVideos, dropout: "DropoutFactors"):
        self.rows = rows
        self.dropout = dropout
        self.copies = getattr(rows.data, "repeated_aug", 1)  # clips of a video

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple:
        position = self.rows.sampler.global_position(self.rows.start + int(index))
        return (*self.rows[index], self.dropout.draw(position, self.copies))

    def make_blank_row(self) -> tuple:
        # 1: nothing is dropped.
        factors = np.ones((self.copies, self.dropout.size), np.float32)
        return (*self.rows.make_blank_row(), factors)


class EvalVideos(abc.ABC):
    """Random-access evaluation rows of one rank: (clips, label, valid), all views of one video.

    `valid` is False for rows that pad the last batch and for unreadable videos.
    """

    def __init__(self, records: list[Record], cfg, rt: Runtime, shape: tuple[int, ...]):
        """`shape` is (V, ...), the shape of all V views of a video."""
        self.records = records
        self.cfg = cfg
        self.shape = shape
        stored = storage_order(records)
        self.mine = shard_for_eval(len(records), cfg.eval.batch, rt.rank, rt.size, stored)
        self.unreadable = UnreadableVideos([record.path for record in records])

    def __len__(self) -> int:
        return len(self.mine)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32, np.bool_]:
        sample = self.mine[int(index)]
        if sample is not None:
            record = self.records[sample]
            try:
                views = self.make_views(record, sample)
                if views.shape != self.shape:  # the scores would change, and nobody notice
                    reason = f"views {views.shape} instead of {self.shape}"
                    raise AssertionError(f"{record.path}: {reason}")
                return views, np.int32(record.label), np.bool_(True)
            except VideoError as error:
                self.unreadable.add(sample, str(error))
        return self.make_blank_row()

    def make_blank_row(self) -> tuple[np.ndarray, np.int32, np.bool_]:
        return np.zeros(self.shape, np.uint8), np.int32(0), np.bool_(False)

    def dataset(self) -> "ds.Dataset":
        """All rows in batches; the last batch is padded."""
        columns = ("clips", "label", "valid")
        blank = self.make_blank_row()
        return build_batch_dataset(self, columns, blank, self.cfg.data, self.cfg.eval.batch)

    @abc.abstractmethod
    def make_views(self, record: Record, sample: int) -> np.ndarray:
        """uint8 clips of `self.shape`, from one decode of the video."""
