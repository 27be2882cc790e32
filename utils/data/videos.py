"""Rows of annotated videos, and their sampler: what the networks that read videos share."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from utils.data.packed.sampler import PackedSampler, group_by_shard, storage_order
from utils.data.rows import EvalRows, TrainRows
from utils.data.sampler import TrainSampler
from utils.data.unreadable import DamagedFrames
from utils.log import log
from utils.runtime import Runtime
from utils.video.reader import FrameSource


def build_train_sampler(cfg: Any, records: Sequence[Any], rt: Runtime) -> TrainSampler:
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


class TrainVideos(TrainRows):
    """Training rows of videos; counts the frames that the decoder marks as damaged."""

    def __init__(
        self, records: Sequence[Any], cfg: Any, sampler: TrainSampler, epochs: int, skip: int
    ):
        super().__init__(records, cfg, sampler, epochs, skip)
        self.damaged = DamagedFrames()

    @contextlib.contextmanager
    def count_damaged(self, source: FrameSource) -> Iterator[FrameSource]:
        """Closes the source at the end, and counts its damaged frames."""
        with source as video:
            yield video
            self.damaged.add(video)


class EvalVideos(EvalRows):
    """Evaluation rows of videos; a rank reads one contiguous part of packed videos."""

    def __init__(self, records: Sequence[Any], cfg: Any, rt: Runtime, shape: tuple[int, ...]):
        super().__init__(records, cfg, rt, shape, storage_order(records))
