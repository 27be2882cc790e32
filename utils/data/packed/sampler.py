"""Sampling of packed lists: shuffled, while every shard is read sequentially.

An update takes `group` samples of all ranks. Each of these positions has its own stream of samples:
a part of all shards, which are concatenated in random order. Every update takes the next sample of
every stream. So the sequence is the same for any number of ranks, and a rank reads only the shards
of its own streams.

The start inside a shard is random in every epoch. A stream is shuffled in windows of 32 videos.
So the neighbours of a sample change every epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from utils.data.sampler import TrainSampler

WINDOW = 32  # samples; a few dozen MB of a shard


@dataclass
class PackedSampler(TrainSampler):
    """`shards` holds, for each list, the samples of each of its shards in stored order.

    An epoch takes equally many samples of every shard of a list, and whole updates only. It leaves
    out the rest, which changes at random from epoch to epoch.
    """

    group: int = 1  # samples of all ranks in one update
    shards: Sequence[Sequence[np.ndarray]] = ()

    def __post_init__(self):
        updates = sum(self.smallest(shards) * len(shards) for shards in self.shards) // self.group
        self.epoch_samples = self.epoch_samples or updates * self.group
        if not updates:
            raise ValueError(
                f"data.batch: {self.samples} packed samples do not fill one update of {self.group}"
            )
        super().__post_init__()

    @staticmethod
    def smallest(shards: Sequence[np.ndarray]) -> int:
        """Samples that an epoch takes of every shard: as many as the smallest one has."""
        return min(map(len, shards))

    def draw(self, epoch: int) -> np.ndarray:
        """The samples of an epoch, for all ranks, one update after another."""
        rng = np.random.RandomState([self.seed, epoch])
        sizes = [self.smallest(shards) * len(shards) for shards in self.shards]
        # A list with fewer samples than streams has no streams. Its samples are mixed with some of
        # the largest list, one for every stream, and then distributed over all streams.
        spare = [min(sizes) < self.group and size == max(sizes) for size in sizes]
        lists, left = zip(*map(self.make_streams, self.shards, spare, [rng] * len(sizes)))
        left = rng.permutation(np.concatenate(left))
        extra = len(left) // self.group
        lists = [*lists, left[: extra * self.group].reshape(self.group, extra)]
        merged = [self.merge([parts[i] for parts in lists], rng) for i in range(self.group)]
        return np.stack(merged, axis=1).reshape(-1)

    def make_streams(
        self, shards: Sequence[np.ndarray], spare: bool, rng: np.random.RandomState
    ) -> tuple[np.ndarray, np.ndarray]:
        """One list's streams (group, length), and the samples that are in none of them."""
        count = self.smallest(shards)
        rolled = [np.roll(shard, rng.randint(len(shard)))[:count] for shard in shards]
        samples = np.concatenate([rolled[k] for k in rng.permutation(len(rolled))])
        length = max(len(samples) // self.group - spare, 0)
        starts = np.arange(self.group) * len(samples) // self.group
        windows = np.arange(length) // WINDOW + rng.random_sample((self.group, length))
        positions = starts[:, None] + np.argsort(windows, axis=1)
        return samples[positions], np.delete(samples, positions)

    @staticmethod
    def merge(parts: list[np.ndarray], rng: np.random.RandomState) -> np.ndarray:
        """One stream of all lists, mixed at random; each list's samples keep their order."""
        which = rng.permutation(np.repeat(np.arange(len(parts)), [len(part) for part in parts]))
        merged = np.empty(len(which), np.int64)
        for k, part in enumerate(parts):
            merged[which == k] = part
        return merged


def group_by_shard(records: Sequence) -> list[list[np.ndarray]]:
    """For each list, the samples of each shard in stored order; repeated records come last."""
    lists: dict[str, dict[str, list]] = {}
    repeats: dict[tuple, int] = {}
    for sample, record in enumerate(records):
        shard = record.location.shard
        offset = record.location.offset
        repeats[shard, offset] = repeats.get((shard, offset), -1) + 1
        shards = lists.setdefault(shard.rpartition("/")[0], {})
        shards.setdefault(shard, []).append((repeats[shard, offset], offset, sample))
    return [
        [np.array([sample for *_, sample in sorted(rows)]) for _, rows in sorted(shards.items())]
        for shards in lists.values()
    ]


def storage_order(records: Sequence) -> list[int]:
    """The samples in stored order; empty if the list is not packed."""
    if not records or records[0].location is None:
        return []
    return sorted(range(len(records)), key=lambda k: records[k].location[:2])
