"""Which sample comes when, of packed lists: shuffled, while every shard is read from end to end.

An update takes `group` samples of all ranks. Each of these places has a lane of its own, a part of
all shards put one behind the other in a drawn order; every update takes the next sample of every
lane. So the order is that of any number of ranks, and a rank reads the shards of its own lanes.

Where a shard is begun is drawn for every epoch, and lanes go through it in windows of a few dozen
videos that are shuffled: no two samples keep company.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from utils.data.sampler import TrainSampler

WINDOW = 32  # samples; a few dozen MB of a shard


@dataclass
class PackedSampler(TrainSampler):
    """`shards` has, for each list, the samples of each of its shards as they are stored.

    An epoch takes equally many of every shard of a list, and whole updates only; what is left over,
    drawn, takes its turn in another epoch.
    """

    group: int = 1  # samples of all ranks in one update
    shards: Sequence[Sequence[np.ndarray]] = ()

    def __post_init__(self):
        lanes = sum(self.even(shards) * len(shards) for shards in self.shards) // self.group
        self.epoch_samples = self.epoch_samples or lanes * self.group
        if not lanes:
            raise ValueError(
                f"data.batch: {self.samples} packed samples do not fill one update of {self.group}"
            )
        super().__post_init__()

    @staticmethod
    def even(shards: Sequence[np.ndarray]) -> int:
        """Samples that an epoch takes of every shard."""
        return min(len(shard) for shard in shards)

    def draw(self, epoch: int) -> np.ndarray:
        rng = np.random.RandomState([self.seed, epoch])
        sizes = [self.even(shards) * len(shards) for shards in self.shards]
        # A list too small for a lane each shares a place in all lanes with a part of the largest.
        spare = [min(sizes) < self.group and size == max(sizes) for size in sizes]
        lists, left = zip(*map(self.lanes, self.shards, spare, [rng] * len(sizes)))
        left = rng.permutation(np.concatenate(left))
        extra = len(left) // self.group
        lists = [*lists, left[: extra * self.group].reshape(self.group, extra)]
        merged = [self.merge([lanes[i] for lanes in lists], rng) for i in range(self.group)]
        return np.stack(merged, axis=1).reshape(-1)  # update after update

    def lanes(
        self, shards: Sequence[np.ndarray], spare: bool, rng: np.random.RandomState
    ) -> tuple[np.ndarray, np.ndarray]:
        """One list's lanes (group, length), and the samples that do not make up one more each."""
        even = self.even(shards)
        begun = [np.roll(shard, rng.randint(len(shard)))[:even] for shard in shards]
        drawn = np.concatenate([begun[k] for k in rng.permutation(len(begun))])
        length = max(len(drawn) // self.group - spare, 0)
        starts = np.arange(self.group) * len(drawn) // self.group
        windows = np.arange(length) // WINDOW + rng.random_sample((self.group, length))
        positions = starts[:, None] + np.argsort(windows, axis=1)
        return drawn[positions], np.delete(drawn, positions)

    @staticmethod
    def merge(parts: list[np.ndarray], rng: np.random.RandomState) -> np.ndarray:
        """One lane of all lists, mixed by chance; each list's samples keep their order."""
        which = rng.permutation(np.repeat(np.arange(len(parts)), [len(part) for part in parts]))
        merged = np.empty(len(which), np.int64)
        for k, part in enumerate(parts):
            merged[which == k] = part
        return merged


def shards_of(records: Sequence) -> list[list[np.ndarray]]:
    """Samples of each list's shards, as they are stored; a record that comes twice, behind all."""
    lists: dict[str, dict[str, list]] = {}
    seen: dict[tuple, int] = {}
    for sample, record in enumerate(records):
        position = record.location
        key = (position.shard, position.offset)
        seen[key] = seen.get(key, -1) + 1
        folder = lists.setdefault(position.shard.rpartition("/")[0], {})
        folder.setdefault(position.shard, []).append((seen[key], position.offset, sample))
    return [
        [np.array([sample for *_, sample in sorted(rows)]) for _, rows in sorted(shards.items())]
        for shards in lists.values()
    ]


def storage_order(records: Sequence) -> list[int]:
    """The samples as they lie in their shards; empty for a list that is not packed."""
    if not records or records[0].location is None:
        return []
    return sorted(range(len(records)), key=lambda k: records[k].location[:2])
