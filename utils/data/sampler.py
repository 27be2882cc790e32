"""Deterministic, resumable sampling: which sample comes when.

The samples of a whole run are one global sequence, a pure function of seed, epoch and position
(docs/glossary.md).
Epoch e is a permutation drawn from (seed, e). A global batch takes the next `size * batch` samples
of it, and rank r takes the r-th part. Therefore the sequence is the same for any number of workers,
a resumed run starts in the middle of it, and two ranks at batch size B see what one rank sees at
2B. A run that resumes with another number of ranks keeps the length of its epochs
(`epoch_samples`).
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Optional

import numpy as np

from utils.data.annotation_file import Label, list_labels
from utils.runtime import Runtime
from utils.settings import NetworkConfig

GENERATORS = threading.local()


@dataclass
class TrainSampler:
    """The training sequence of `samples` samples for one rank; positions are the rank's.

    `class_samples` has for each data set the number of samples of each class; None: unknown.

    `copies` above 1 is repeated augmentation (arXiv:1902.05509) as torchvision's `RASampler`: an
    epoch has as many samples as without it, `copies` of each of the first ones of its permutation.
    The copies are neighbours in the order in which the ranks take samples in turns. So on enough
    ranks they are in the same step, each on another rank.
    """

    samples: int
    batch: int  # per rank
    rank: int
    size: int
    seed: int
    epoch_samples: int = 0  # samples of an epoch; 0: as many as fill whole global batches
    class_samples: Optional[list[np.ndarray]] = field(default=None, repr=False, compare=False)
    copies: int = 1  # of a sample in an epoch, which then has fewer samples
    cache: dict = field(default_factory=dict, repr=False)

    def __post_init__(self):
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"data.batch: {self.samples} samples do not fill one batch of {self.batch} on each "
                f"of {self.size} ranks; lower data.batch"
            )

    @property
    def global_batch_size(self) -> int:
        """Samples of all ranks in one step."""
        return self.batch * self.size

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches; an epoch leaves out the rest of its permutation."""
        return (self.epoch_samples or self.samples) // self.global_batch_size

    @property
    def samples_per_epoch(self) -> int:
        """Samples of all ranks in one epoch."""
        return self.steps_per_epoch * self.global_batch_size

    def updates_per_epoch(self, accumulation_steps: int) -> int:
        """Updates; the remaining steps of an epoch make an update of their own."""
        return -(-self.steps_per_epoch // accumulation_steps)

    def effective_batch_size(self, accumulation_steps: int) -> int:
        """Samples of all ranks in one update of the weights."""
        return self.global_batch_size * accumulation_steps

    def sample_at(self, position: int) -> tuple[int, int]:
        """(sample, epoch) at a position of this rank."""
        epoch, index = divmod(self.global_position(position), self.samples_per_epoch)
        return int(self.permutation(epoch)[index]), epoch

    def repetition_at(self, position: int) -> int:
        """A number that the copies of a sample in an epoch do not share; 0 if none is repeated."""
        taken = position % (self.steps_per_epoch * self.batch)  # by this rank in this epoch
        return (taken * self.size + self.rank) % self.copies

    def global_position(self, position: int) -> int:
        """A position of this rank, counted over the samples of all ranks from the run's start."""
        step, offset = divmod(position, self.batch)
        return (step * self.size + self.rank) * self.batch + offset

    def permutation(self, epoch: int) -> np.ndarray:
        """The samples of an epoch in their order, for all ranks."""
        if epoch not in self.cache:
            for old in [e for e in self.cache if e < epoch - 1]:
                self.cache.pop(old, None)
            order = np.random.RandomState([self.seed, epoch]).permutation(self.samples)
            if self.copies > 1:
                order = np.repeat(order, self.copies)[: self.samples_per_epoch]
                order = order.reshape(-1, self.batch, self.size).transpose(0, 2, 1).reshape(-1)
            self.cache[epoch] = order
        return self.cache[epoch]


def build_sampler(
    cfg: NetworkConfig,
    rt: Runtime,
    samples: int,
    labels: Iterable[tuple[int, Label]],
    copies: int = 1,
) -> TrainSampler:
    """The sampler of a training over `samples` samples with these (data set, label)."""
    counts = None
    if cfg.train.class_weights == "balanced":
        counts = [np.zeros(count, np.int64) for count in cfg.class_counts]
        for k, label in labels:
            counts[k][[*list_labels(label)]] += 1
    return TrainSampler(
        samples,
        batch=cfg.data.batch,
        rank=rt.rank,
        size=rt.size,
        seed=rt.seed,
        class_samples=counts,
        copies=copies,
    )


def sample_rng(seed: int, epoch: int, sample: int, copy: int = 0) -> np.random.RandomState:
    """The random generator of one sample, or of one copy of a repeated sample, in one epoch.

    A thread has one generator, which its next call seeds again: to create one takes ten times as
    long, 0.1 ms, and an image 1.2 ms.
    """
    # 1 is taken: `TrainRows.draw_candidates`.
    key = [seed, epoch, sample, copy + 1] if copy else [seed, epoch, sample]
    try:
        GENERATORS.rng.seed(key)
    except AttributeError:  # the first call in this thread
        GENERATORS.rng = np.random.RandomState(key)
    return GENERATORS.rng


def shard_for_eval(samples: int, batch: int, rank: int, size: int) -> list[Optional[int]]:
    """The samples of one rank in an evaluation, padded with None to whole batches.

    Every sample belongs to exactly one rank, and all ranks have the same number of batches.
    """
    longest = -(-samples // size)
    length = -(-longest // batch) * batch
    shard = list(range(rank, samples, size))
    return shard + [None] * (length - len(shard))
