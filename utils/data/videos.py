"""Rows of annotated videos, and their sampler: what the networks that read videos share."""

import abc
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from utils.config import NetworkConfig, VideoData
from utils.data import records
from utils.data.classes import choose_order, count_labels, list_classes
from utils.data.packed.sampler import PackedSampler, group_by_shard, storage_order
from utils.data.rows import EvalRows, Rows, TrainRows
from utils.data.sampler import TrainSampler
from utils.data.unreadable import VideoWarnings
from utils.log import log
from utils.runtime import Runtime
from utils.video.reader import Clip, FrameReader, Timeline


def build_train_sampler(cfg: NetworkConfig, records: Sequence[Any], rt: Runtime) -> TrainSampler:
    """The sampler of a training run over these records.

    That of packed videos assigns the shard files to the micro-batches of all ranks. Logs if several
    of them read the same shard file, and if an epoch leaves out more than 2 % of the samples. With
    `data.balance`, packed videos are read in random order.
    """
    order = choose_order(cfg, rt, lambda: list_classes(records))
    if cfg.has_several_labels and cfg.train.class_weights == "balanced":
        labels = (record.label for record in records)
        order["positives"] = count_labels(labels, cfg.class_counts[0])
    if not isinstance(cfg.data, VideoData) or cfg.data.packed is None or order["balance"] != "none":
        return TrainSampler(len(records), **order)
    parts = rt.size * cfg.train.accumulation_steps  # micro-batches of an update, over all ranks
    shards = group_by_shard(records)
    group = cfg.data.batch * parts
    sampler = PackedSampler(len(records), **order, group=group, shards=shards)
    for count in {len(data_set) for data_set in shards}:
        if count % parts:
            log.info("data.packed: %d shards for %d parts: ranks share some of them", count, parts)
    if sampler.epoch_samples < 0.98 * sampler.samples:
        log.info(
            "data.packed: an epoch takes %d of %d samples", sampler.epoch_samples, sampler.samples
        )
    return sampler


class VideoRows(Rows):
    """Rows that open videos; counts what the log warns of, over all workers."""

    cfg: NetworkConfig

    def __init__(self):
        self.warnings = VideoWarnings()

    @contextlib.contextmanager
    def open_video(self, record: Any) -> Iterator[FrameReader]:
        """Opens the video of a record, and closes it at the end."""
        data: Any = self.cfg.data  # of a network for videos
        with records.open_record(record, data) as video:
            yield video
            self.warnings.add(video)


class TrainVideos(VideoRows, TrainRows):
    """Training rows of videos."""

    def __init__(
        self,
        records: Sequence[Any],
        cfg: NetworkConfig,
        sampler: TrainSampler,
        epochs: int,
        skip: int,
    ):
        VideoRows.__init__(self)
        TrainRows.__init__(self, records, cfg=cfg, sampler=sampler, epochs=epochs, skip=skip)

    @abc.abstractmethod
    def choose_frames(self, video: Timeline, record: Any, rng: np.random.RandomState) -> np.ndarray:
        """The frame numbers of a clip."""

    @contextlib.contextmanager
    def open_clip(self, record: Any, rng: np.random.RandomState) -> Iterator[Clip]:
        """The frames of a clip, which are decoded inside the `with` block."""
        with self.open_video(record) as video:
            yield Clip(video, self.choose_frames(video, record, rng))

    def read_frames(self, record: Any, rng: np.random.RandomState) -> np.ndarray:
        with self.open_video(record) as video:
            return video.frames(self.choose_frames(video, record, rng))


class EvalVideos(VideoRows, EvalRows):
    """Evaluation rows of videos; a rank reads one contiguous part of packed videos."""

    def __init__(
        self, records: Sequence[Any], cfg: NetworkConfig, rt: Runtime, shape: tuple[int, ...]
    ):
        VideoRows.__init__(self)
        order = storage_order(records)
        EvalRows.__init__(self, records, cfg=cfg, rt=rt, shape=shape, storage_order=order)
