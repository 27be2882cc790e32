"""Rows: random access to the samples of one rank, videos or images, in training and evaluation.

`rows[k]` is one sample. Subclasses in the dataset.py of each network define what a row is: which
frames, which crops, which axes. Its `create_dataset` makes a MindData pipeline of them. A training
row depends on seed, epoch, sample and copy only, its dropout on the position. So it is the same for
any number of workers, and a resumed run continues exactly.
"""

import abc
import contextlib
import multiprocessing
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from utils.data.annotation_file import Label, encode_label, swap_labels
from utils.data.sampler import TrainSampler, sample_rng, shard_for_eval
from utils.log import log
from utils.runtime import Runtime
from utils.settings import NetworkConfig
from utils.video.reader import FrameReader, Timeline, VideoError

if TYPE_CHECKING:
    from utils.nn.dropout import DropoutFactors

MEASURED = 16  # videos, for the length of a clip
MAX_TRIES = 100  # files tried for one row, the one of the sample sequence included
Share = tuple[int, int, float]  # a data set, a label of it, and its weight in a mixed clip
Row = tuple[Any, ...]  # arrays and scalars of NumPy

# The decoder guesses the pixels of damaged frames.
DAMAGED_FRAMES = "%d damaged frames read so far, the newest in %s; see scripts/data/check_videos.py"
REMEDIES = {"video": "leave them out by scripts/data/check_videos.py", "image": "remove them"}


class Rows(abc.ABC):
    """A sequence of rows; a row has one value for each of `columns`."""

    columns: tuple[str, ...]
    batch: int  # rows of a batch

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Row: ...

    @abc.abstractmethod
    def example(self) -> Row:
        """A row of the shapes and types of all rows, in place of a file that cannot be read."""

    def make_zero_batch(self) -> list[np.ndarray]:
        """Zeros in the shapes and types of a batch, to compile for."""
        example = map(np.asarray, self.example())
        return [np.zeros((self.batch, *value.shape), value.dtype) for value in example]


class UnreadableFiles:
    """One flag (a byte) per record, in memory shared by worker processes and threads.

    A record has the attribute `path`; `kind` is video or image.
    """

    def __init__(self, records: Sequence[Any], kind: str = "video"):
        self.records = records
        self.kind = kind
        self.flags = multiprocessing.Array("b", len(records))

    def add(self, index: int, reason: str) -> None:
        """Marks a file; logs the decoder's reason when it is marked for the first time."""
        with self.flags.get_lock():
            was_marked = self.flags[index]
            self.flags[index] = 1
        if not was_marked:
            log.warning("unreadable %s: %s", self.kind, reason)

    def restore_marks(self, indices: np.ndarray) -> None:
        """Marks the files that were marked before a run was stopped."""
        self.view_flags()[indices[indices < len(self.records)]] = True

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.view_flags()))

    def view_flags(self) -> np.ndarray:
        """The flags without a copy: every training step counts them, a million for ImageNet."""
        return np.frombuffer(memoryview(self.flags.get_obj()), np.bool_)


class VideoWarnings:
    """Damaged frames over all workers of a rank.

    Their number is logged when it is no longer 0 and when it has doubled.
    """

    def __init__(self):
        self.counts: Any = multiprocessing.Array("q", 2)  # so far; in the newest line of the log

    def add(self, source: FrameReader) -> None:
        """Counts those of a video that has been read. `FrameReader.damaged` says who marks them."""
        if source.damaged:
            with self.counts.get_lock():
                self.counts[0] += source.damaged
                total, logged = self.counts
                if total >= 2 * logged:
                    self.counts[1] = total
                    log.warning(DAMAGED_FRAMES, total, source.path)


class FileRows(Rows):
    """Rows made of files; counts those that cannot be read, over all workers.

    `records` has one object with the attributes `path` and `label` for each sample; `cfg` is the
    network's Config.
    """

    kind = "video"  # or "image", in messages

    def __init__(self, records: Sequence[Any], cfg: NetworkConfig):
        self.records: Any = records
        self.cfg = cfg
        self.unreadable = UnreadableFiles(records, self.kind)
        self.warnings = VideoWarnings()

    @contextlib.contextmanager
    def open_video(self, record: Any) -> Iterator[FrameReader]:
        """Opens the video of a record, and closes it at the end."""
        with record.open(self.cfg.data) as video:
            yield video
            self.warnings.add(video)


class TrainRows(FileRows):
    """Training rows of one rank, for all remaining epochs of the run.

    A resumed run has trained the first `skip` batches already; index 0 is the row after them. An
    unreadable file is replaced by another one, chosen at random. It is read again the next time: a
    video may be readable in part, and a row must not depend on what was read before.
    """

    columns = ("clip", "label")

    def __init__(
        self,
        records: Sequence[Any],
        cfg: NetworkConfig,
        sampler: TrainSampler,
        epochs: int,
        skip: int,
    ):
        super().__init__(records, cfg)
        self.data = cfg.data
        self.copies = cfg.data.clips_per_sample
        self.sampler = sampler
        self.batch = sampler.batch
        self.start = skip * sampler.batch  # position of index 0 in this rank's sequence
        self.length = epochs * sampler.steps_per_epoch * sampler.batch - self.start

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Row:
        position = self.start + int(index)
        sample, epoch = self.sampler.sample_at(position)
        row = self.read_sample(sample, epoch, self.sampler.repetition_at(position))
        if self.data.mixes:
            self.write_mix(row[1], *divmod(position, self.sampler.batch))
        return row

    def write_mix(self, target: np.ndarray, step: int, row: int) -> None:
        """Writes the mixing of the batch of a step of the run into the target of one of its rows.

        It depends on seed, step and rank only, so a resumed run has the same.
        """
        from utils.data.mixing import draw_partners  # here: most trainings need not load it

        key = (self.sampler.seed, step, self.sampler.rank)
        target[1:] = draw_partners(self.data, self.batch, key)[row]

    def make_target(
        self, label: Label, swapped: Sequence[tuple[int, int]] = ()
    ) -> Union[np.int32, np.ndarray]:
        """The target of a row; `swapped` are the pairs of labels that a mirrored clip exchanges.

        With mixup or cutmix it is float32 (3 or 7,), which `write_mix` completes.
        """
        label = swap_labels(label, swapped)
        if not self.data.mixes:
            return encode_label(label, self.cfg.class_counts[0])
        columns = 6 if self.data.cutmix else 2
        return np.array([label, *[0] * columns], np.float32)

    def read_sample(self, sample: int, epoch: int, copy: int = 0) -> Row:
        """The row of a sample in an epoch, or of one of its copies there."""
        for candidate in self.draw_candidates(sample, epoch):
            try:
                rng = sample_rng(self.sampler.seed, epoch=epoch, sample=candidate, copy=copy)
                return self.make_row(self.records[candidate], rng)
            except VideoError as error:
                self.unreadable.add(candidate, str(error))
        return self.example()  # with so many unreadable files, `find_fault` stops the run

    def draw_candidates(self, sample: int, epoch: int) -> Iterator[int]:
        """The sample, then the samples that replace it while they cannot be read either."""
        yield sample
        # A separate generator, so that the replacement does not depend on what was read before.
        rng = np.random.RandomState([self.sampler.seed, epoch, sample, 1])
        for _ in range(MAX_TRIES - 1):
            yield rng.randint(len(self.records))

    def example(self) -> Row:
        clip = np.zeros(self.cfg.get_clip_shape(self.data.crop), np.uint8)
        return clip, self.make_target(self.cfg.example_label)

    def find_fault(self) -> str:
        """Why the trainer must stop the run (too many unreadable files), or an empty string."""
        limit = self.data.max_unreadable
        count = self.unreadable.count
        if count <= limit * len(self.records):
            return ""
        example = self.records[int(np.argmax(self.unreadable.view_flags()))].path
        return (
            f"data.max_unreadable: {count} of {len(self.records)} {self.kind}s could not be read, "
            f"more than {limit:.2%} (the first: {example}); {REMEDIES[self.kind]}, or raise "
            "the limit"
        )

    def measure_clips(self) -> float:
        """The seconds of a video that a clip covers; 0 if unknown, and for images."""
        return 0.0

    def list_shares(self, targets: np.ndarray) -> list[list[Share]]:
        """The classes of each clip of a batch with these targets."""
        if self.cfg.has_several_labels:
            return [[(0, int(k), 1.0) for k in np.flatnonzero(row)] for row in targets]
        if not self.data.mixes:
            return [[(0, int(label), 1.0)] for label in targets]
        partners = targets[targets[:, 2].astype(int)]
        return [[(0, int(a[0]), a[1]), (0, int(b[0]), 1 - a[1])] for a, b in zip(targets, partners)]

    @abc.abstractmethod
    def make_row(self, record: Any, rng: np.random.RandomState) -> Row:
        """One training row: a value for each of `columns`. Raises VideoError."""


class RowsWithDropout(Rows):
    """Training rows, each followed by its dropout factors: float32 (copies, K).

    `rows` are `TrainRows`, or have their attributes.
    """

    def __init__(self, rows: Any, dropout: "DropoutFactors"):
        self.rows = rows
        self.dropout = dropout
        self.batch = rows.batch
        self.columns = (*rows.columns, "dropout")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        position = self.rows.sampler.global_position(self.rows.start + int(index))
        return (*self.rows[index], self.dropout.draw(position, self.rows.copies))

    def example(self) -> Row:
        # 1: nothing is dropped.
        return (*self.rows.example(), np.ones((self.rows.copies, self.dropout.size), np.float32))


class EvalRows(FileRows):
    """Evaluation rows of one rank: (clips, label, valid), all views of one video or image.

    `valid` is False for rows that pad the last batch and for unreadable files.
    """

    columns = ("clips", "label", "valid")
    clips = 1  # views of a row in time
    crops = 1  # views of each in space

    def __init__(
        self,
        records: Sequence[Any],
        cfg: NetworkConfig,
        rt: Runtime,
        clip_shape: tuple[int, ...],
    ):
        """`clip_shape` is the shape of one view; `self.shape` (V, ...) of all V views."""
        super().__init__(records, cfg)
        self.shape = (self.clips * self.crops, *clip_shape)
        self.views = f"{self.clips}x{self.crops}"  # as results name them
        self.batch = cfg.eval.batch
        self.samples_of_rank = shard_for_eval(
            len(records), batch=self.batch, rank=rt.rank, size=rt.size
        )

    def __len__(self) -> int:
        return len(self.samples_of_rank)

    def __getitem__(self, index: int) -> Row:
        sample = self.samples_of_rank[int(index)]
        if sample is not None:
            record = self.records[sample]
            try:
                views = self.make_views(record, sample)
                if views.shape != self.shape:  # the scores would change, and nobody notice
                    reason = f"views {views.shape} instead of {self.shape}"
                    raise AssertionError(f"{record.path}: {reason}")
                label = encode_label(record.label, self.cfg.class_counts[0])
                return views, label, np.bool_(True)
            except VideoError as error:
                self.unreadable.add(sample, str(error))
        return self.example()

    def example(self) -> Row:
        label = encode_label(self.cfg.example_label, self.cfg.class_counts[0])
        return np.zeros(self.shape, np.uint8), label, np.bool_(False)

    @abc.abstractmethod
    def make_views(self, record: Any, sample: int) -> np.ndarray:
        """uint8 clips of `self.shape`, from one decode of the file. Raises VideoError."""


class TrainVideoRows(TrainRows):
    """Training rows of videos, for a network of one data set."""

    @abc.abstractmethod
    def choose_frames(self, video: Timeline, record: Any, rng: np.random.RandomState) -> np.ndarray:
        """The frame numbers of a clip."""

    def measure_clips(self) -> float:
        """The median of MEASURED readable videos, at equal distances in the list.

        A clip that spans more than half of its video stands for the whole.
        """
        seconds = []
        count = min(MEASURED, len(self.records))
        for k in np.linspace(0, len(self.records) - 1, count).astype(int):
            record = self.records[k]
            with contextlib.suppress(VideoError), record.open(self.data) as video:
                span = 1 + np.ptp(self.choose_frames(video, record, np.random.RandomState(0)))
                frames = len(video) if span > len(video) / 2 else span
                seconds.append(frames / video.fps if video.fps else 0.0)
        return round(float(np.median(seconds)), 3) if seconds else 0.0

    def augment(
        self, clip: np.ndarray, channel_axis: int, rng: np.random.RandomState
    ) -> np.ndarray:
        """A clip of cropped RGB frames after `data.rand_augment` and `data.erase`.

        Apart from `channel_axis` its axes are the frames': time, height, width.
        """
        data: Any = self.data  # of a network for videos
        if not (data.rand_augment or data.erase):
            return clip
        from utils.video.augment import augment_frames  # here: most trainings need it not

        frames = np.moveaxis(clip, channel_axis, -1)
        frames = augment_frames(frames, policy=data.rand_augment, erase=data.erase, rng=rng)
        return np.ascontiguousarray(np.moveaxis(frames, -1, channel_axis))
