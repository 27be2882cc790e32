"""Rows of annotated videos, and their sampler: what the networks that read videos share."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from utils.config import NetworkConfig, VideoData
from utils.data.classes import list_classes, log_balance
from utils.data.packed.sampler import PackedSampler, group_by_shard, storage_order
from utils.data.rows import EvalRows, TrainRows
from utils.data.sampler import TrainSampler
from utils.data.unreadable import DamagedFrames
from utils.log import log
from utils.runtime import Runtime
from utils.video.reader import FrameReader


def build_train_sampler(cfg: NetworkConfig, records: Sequence[Any], rt: Runtime) -> TrainSampler:
    """The sampler of a training run over these records.

    That of packed videos assigns the shard files to the micro-batches of all ranks. Logs if several
    of them read the same shard file, and if an epoch leaves out more than 2 % of the samples. With
    `data.balance`, packed videos are read in random order.
    """
    needs_classes = cfg.data.balance != "none" or cfg.train.class_weights == "balanced"
    order: dict[str, Any] = {
        "batch": cfg.data.batch,
        "rank": rt.rank,
        "size": rt.size,
        "seed": rt.seed,
        "classes": list_classes(records) if needs_classes else None,
        "balance": cfg.data.balance,
    }
    if cfg.data.balance != "none":
        log_balance(order["classes"], cfg.data.balance)
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


class TrainVideos(TrainRows):
    """Training rows of videos; counts the frames that the decoder marks as damaged."""

    def __init__(
        self,
        records: Sequence[Any],
        cfg: NetworkConfig,
        sampler: TrainSampler,
        epochs: int,
        skip: int,
    ):
        super().__init__(records, cfg=cfg, sampler=sampler, epochs=epochs, skip=skip)
        self.damaged = DamagedFrames()

    @contextlib.contextmanager
    def count_damaged(self, source: FrameReader) -> Iterator[FrameReader]:
        """Closes the source at the end, and counts its damaged frames."""
        with source as video:
            yield video
            self.damaged.add(video)


class EvalVideos(EvalRows):
    """Evaluation rows of videos; a rank reads one contiguous part of packed videos."""

    def __init__(
        self, records: Sequence[Any], cfg: NetworkConfig, rt: Runtime, shape: tuple[int, ...]
    ):
        super().__init__(records, cfg=cfg, rt=rt, shape=shape, storage_order=storage_order(records))
