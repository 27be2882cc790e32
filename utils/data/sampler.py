"""Which sample comes when: a pure function of seed, epoch and position.

The whole run is one long tape of samples. Epoch e is a permutation drawn from (seed, e); every
global batch takes the next `size * batch` of it, rank r the r-th part. So the order is the same for
any number of workers, a resumed run starts in the middle of the tape, and two ranks at batch B see
what one rank sees at 2B. A run that goes on with another number of ranks keeps its epochs (`used`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Order:
    """The training order of `samples` samples for one rank; positions count local samples."""

    samples: int
    batch: int  # per rank
    rank: int
    size: int
    seed: int
    used: int = 0  # samples of an epoch; 0: as many as fill whole global batches
    cache: dict = field(default_factory=dict, repr=False)

    def __post_init__(self):
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"data.batch: {self.samples} samples do not fill one batch of {self.batch} on each "
                f"of {self.size} ranks; lower data.batch"
            )

    @property
    def per_step(self) -> int:
        """Samples of all ranks in one step, a global batch."""
        return self.batch * self.size

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches; what is left over takes its turn in another epoch's permutation."""
        return (self.used or self.samples) // self.per_step

    @property
    def per_epoch(self) -> int:
        """Samples of all ranks in one epoch."""
        return self.steps_per_epoch * self.per_step

    def updates_per_epoch(self, accumulate: int) -> int:
        """The remainder of an epoch makes an update of its own."""
        return -(-self.steps_per_epoch // accumulate)

    def per_update(self, accumulate: int) -> int:
        """Samples of all ranks in one update of the weights."""
        return self.per_step * accumulate

    def at(self, position: int) -> tuple[int, int]:
        """(sample, epoch) at a position of this rank's tape."""
        step, place = divmod(position, self.batch)
        epoch, step = divmod(step, self.steps_per_epoch)
        index = (step * self.size + self.rank) * self.batch + place
        return int(self.permutation(epoch)[index]), epoch

    def global_position(self, position: int) -> int:
        """A position of this rank, counted over the samples of all ranks from the run's start."""
        step, place = divmod(position, self.batch)
        return (step * self.size + self.rank) * self.batch + place

    def epoch(self, epoch: int) -> np.ndarray:
        """The samples of this rank in one epoch, in order: (steps_per_epoch * batch,)."""
        drawn = self.permutation(epoch)[: self.per_epoch]
        return drawn.reshape(-1, self.size, self.batch)[:, self.rank].reshape(-1)

    def permutation(self, epoch: int) -> np.ndarray:
        if epoch not in self.cache:
            for old in [e for e in self.cache if e < epoch - 1]:
                self.cache.pop(old, None)
            self.cache[epoch] = self.draw(epoch)
        return self.cache[epoch]

    def draw(self, epoch: int) -> np.ndarray:
        """The samples of an epoch in their order, all ranks'."""
        return np.random.RandomState([self.seed, epoch]).permutation(self.samples)


def sample_rng(seed: int, epoch: int, sample: int) -> np.random.RandomState:
    """The source of all randomness of one sample in one epoch."""
    return np.random.RandomState([seed, epoch, sample])


def share(samples: int, batch: int, rank: int, size: int, stored: Sequence[int] = ()) -> list:
    """The samples of one rank in an evaluation, padded with None to whole batches.

    Every sample belongs to exactly one rank, and every rank has as many batches. `stored` is the
    order in which packed samples lie: each rank reads a part of that from end to end.
    """
    longest = -(-samples // size)
    length = -(-longest // batch) * batch
    mine = list(range(rank, samples, size))
    if len(stored):
        mine = list(stored[samples * rank // size : samples * (rank + 1) // size])
    return mine + [None] * (length - len(mine))
