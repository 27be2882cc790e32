"""Image data of ResNet: MindData's readers -> our decoder -> MindData's C++ transforms -> batches.

Training yields (image, target): uint8 (N, 3, crop, crop) and labels int32 (N,), or, with mixup,
or cutmix, float32 (N, 4 or 8) (`mixup.py`). Evaluation yields (image, label, valid): uint8
(N, 1, 3, S, S) with S = `cfg.test_crop`, int32 (N,), bool (N,). `valid` is false for unreadable
images and for the padding of the last batch.

Every epoch is a separate MindData pipeline over this rank's samples of the epoch, seeded by seed,
epoch and rank. So a resumed run reads the same crops as a run without a pause, if the number of
workers is the same; `data.workers: auto` depends on the number of CPU cores.
"""

import functools
import itertools
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Optional, Union

import mindspore.dataset as ds
import numpy as np
from mindspore.dataset import vision

from resnet50.augment import Augment
from resnet50.images import decode_or_blank, find_blank_images, make_test_view
from resnet50.mixup import mix_targets
from resnet50.readers import Images, count_samples, open_reader
from utils.data.loader import choose_prefetch, count_workers, log_workers
from utils.data.sampler import TrainSampler, sample_rng, shard_for_eval
from utils.data.unreadable_videos import UnreadableVideos
from utils.data.video_dataset import MAX_TRIES
from utils.nn.dropout import DropoutFactors
from utils.runtime import Runtime
from utils.video.reader import VideoError

MEASURED = 64  # images in memory while the decoder is measured
MINDDATA_BUFFERED = 16  # batches: 8 in its batch operator, about 8 between two pipelines


def read_records(cfg, split: str) -> int:
    """The number of images of a split. Raises ValueError if there are none, or too many classes."""
    return count_samples(cfg.data, split, cfg.model.num_classes)


def build_train_sampler(cfg, samples: int, rt: Runtime) -> TrainSampler:
    common = samples, cfg.data.batch, rt.rank, rt.size, rt.seed
    if cfg.data.repeats == 1:
        return TrainSampler(*common)
    return RepeatingSampler(*common, copies=cfg.data.repeats)


@dataclass
class RepeatingSampler(TrainSampler):
    """Repeated augmentation (arXiv:1902.05509) as torchvision's `RASampler`.

    An epoch has as many samples as without it: `copies` of each of the first images of its
    permutation. The copies are neighbours in the order in which the ranks take samples in turns. So
    on enough ranks they are in the same step, each on another rank.
    """

    copies: int = 1

    def draw(self, epoch: int) -> np.ndarray:
        repeated = np.repeat(super().draw(epoch), self.copies)[: self.samples_per_epoch]
        return repeated.reshape(-1, self.batch, self.size).transpose(0, 2, 1).reshape(-1)


class TrainSource:
    """The remaining batches of the run, in order; an iterable with a length.

    An image that cannot be decoded is replaced by another one, drawn at random. `skip` batches of
    the run are already done.
    """

    def __init__(self, samples: int, cfg, sampler: TrainSampler, epochs: int, skip: int):
        self.cfg = cfg
        self.data = cfg.data
        self.classes = cfg.model.num_classes
        self.samples = samples
        self.sampler = sampler
        self.skip = skip
        self.length = epochs * sampler.steps_per_epoch - skip
        self.images = Images(cfg.data, "train", samples)
        self.unreadable = UnreadableVideos(self.images, "image")
        self.unopenable: set[int] = set()  # samples whose files cannot be opened
        self.error = ""  # of the pipeline, which it ended

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        count = 0
        try:
            for image, label in self.read_batches():
                check_labels(label, self.classes)
                yield image, self.make_target(label, self.skip + count)
                count += 1
        except (RuntimeError, ValueError) as error:
            # Keeps the first message: a pipeline inside another may later raise `Interrupted` only.
            self.error = self.error or summarize_error(error)
        for _ in range(count, self.length):  # the run is about to stop
            yield self.make_blank_batch()

    def make_blank_batch(self, dropout: Optional[DropoutFactors] = None) -> tuple[np.ndarray, ...]:
        """A black batch, with the shapes and types of all batches. The network has no dropout."""
        shape = (self.data.batch, *get_clip_shape(self.data, self.data.crop))
        target = self.make_target(np.zeros(self.data.batch, np.int32), 0)
        return np.zeros(shape, np.uint8), target

    def dataset(self, dropout: Optional[DropoutFactors] = None):
        """The remaining batches; None if none remain. The network has no dropout."""
        if len(self) == 0:
            return None
        set_prefetch(self.data, self.data.batch, self.data.crop)
        log_workers(self.data.workers)
        return ds.GeneratorDataset(self, ["image", "target"], num_parallel_workers=1, shuffle=False)

    def read_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        epoch, skip = divmod(self.skip, self.sampler.steps_per_epoch)
        left = self.length
        while left:
            samples = self.sampler.epoch(epoch).reshape(-1, self.sampler.batch)[skip:]
            for (image, label), numbers in zip(self.epoch_batches(epoch, skip), samples):
                replaced = np.isin(numbers, list(self.unopenable)).nonzero()[0]
                for row in {*find_blank_images(image), *replaced}:
                    image[row], label[row] = self.read_replacement(int(numbers[row]), epoch)
                yield image, label
            left -= self.sampler.steps_per_epoch - skip
            epoch = epoch + 1
            skip = 0

    def epoch_batches(self, epoch: int, skip: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The batches of an epoch after the first `skip`, as MindData reads them.

        A file that cannot be opened ends MindData's pipeline. Then this marks all such files as
        unreadable and starts the epoch's pipeline again, with a readable file in place of each;
        `batches` replaces these rows. The pipeline processes the first batches of the epoch once
        more, so its random crops are the same. A run pays for this once.
        """
        while True:
            pipeline = build_epoch_pipeline(self.data, self.sampler, epoch, self.unopenable)
            rows = pipeline.skip(skip) if skip else pipeline
            try:
                for batch in rows.create_tuple_iterator(num_epochs=1, output_numpy=True):
                    yield batch
                    skip += 1
                return
            except RuntimeError:
                if not self.mark_unopenable():
                    raise

    def mark_unopenable(self) -> bool:
        """Marks files that cannot be opened; whether there are new ones, and readable ones left."""
        before = len(self.unopenable)
        for sample, reason in self.images.find_unopenable():
            self.unopenable.add(sample)
            self.unreadable.add(sample, reason)
        return before < len(self.unopenable) < self.samples

    def read_replacement(self, sample: int, epoch: int) -> tuple[np.ndarray, int]:
        """Another image, and its label, in place of a sample that could not be decoded.

        They are a function of seed, epoch and sample: a separate random generator draws and crops
        the other image. An image that is known to be unreadable is not read again.
        """
        rng = sample_rng(self.sampler.seed, epoch, sample)
        for _ in range(MAX_TRIES):
            if not self.unreadable.is_unreadable(sample):
                try:
                    image, label = self.images.read(sample)
                    for operator in list_train_transforms(self.data, self.sampler.seed):
                        # With the same seed, the flip would depend on the size of the crop.
                        ds.config.set_seed(int(rng.randint(2**31)))
                        image = operator(image)
                    return image, label
                except VideoError as error:
                    self.unreadable.add(sample, str(error))
            sample = rng.randint(self.samples)
        # No image is readable: the run is about to stop (data.max_unreadable).
        return np.zeros(get_clip_shape(self.data, self.data.crop), np.uint8), 0

    def make_target(self, label: np.ndarray, step: int) -> np.ndarray:
        """The target of batch number `step` of the run."""
        return build_targets(self.cfg, label, [self.sampler.seed, step, self.sampler.rank])

    def decode(self, index: int) -> np.ndarray:
        """Only decodes an image, for measurements: the lower bound of its cost."""
        return decode_or_blank(self.sample_images[index % len(self.sample_images)])

    @functools.cached_property
    def sample_images(self) -> list[np.ndarray]:
        """The first images as the reader yields them, encoded or not."""
        rows = open_reader(self.data, "train", range(min(self.samples, MEASURED)), 1)
        return [image for image, _ in rows.create_tuple_iterator(num_epochs=1, output_numpy=True)]

    def find_fault(self) -> str:
        """Why the training must stop (an error, too many unreadable images), or an empty string."""
        return self.error or self.unreadable.describe_excess(self.data.max_unreadable)

    def list_flip_settings(self) -> list:
        """None: no setting depends on the names of classes."""
        return []


def build_targets(cfg, labels: np.ndarray, seed: Union[int, list[int]] = 0) -> np.ndarray:
    """The targets of a training batch with `labels` (N,); `seed` is that of mixup."""
    if not cfg.data.mixes:
        return labels.astype(np.int32)
    return mix_targets(labels, cfg.data, np.random.RandomState(seed))


def build_epoch_pipeline(data, sampler: TrainSampler, epoch: int, unopenable: Container[int] = ()):
    """(image, label) in batches: this rank's part of one epoch.

    Reads the first openable sample of the split in place of each of `unopenable`.
    """
    seed = np.random.RandomState([sampler.seed, epoch, sampler.rank]).randint(2**31)
    ds.config.set_seed(int(seed))
    workers = set_prefetch(data, data.batch, data.crop)
    samples = sampler.epoch(epoch).tolist()
    if unopenable:
        substitute = next(k for k in itertools.count() if k not in unopenable)
        samples = [substitute if sample in unopenable else sample for sample in samples]
    rows = open_reader(data, "train", samples, workers)
    rows = rows.map(list_train_transforms(data, int(seed)), ["image"], num_parallel_workers=workers)
    return rows.batch(data.batch, drop_remainder=True)


def list_train_transforms(data, seed: int = 0) -> list:
    """The operators of training: decoder, random crop, flip, `Augment` with `seed`, channels first.

    They take an image as a reader yields it, or decoded. MindData's own decoder is not used: some
    damaged JPEG files end its process.
    """
    last = [Augment(data, seed)] if data.changes_pixels else []
    last.append(vision.HWC2CHW())
    flip = vision.RandomHorizontalFlip(0.5)
    if data.augment == "none":
        return [build_test_transform(data, data.crop)]
    if data.augment == "crop":
        crop = vision.RandomResizedCrop(data.crop, (data.min_area, 1.0), (3 / 4, 4 / 3))
        return [decode_or_blank, crop, flip, *last]
    crop = [vision.RandomCrop(32, 4), flip]
    if data.crop != 32:
        crop.append(vision.Resize((data.crop, data.crop), vision.Inter.BILINEAR))
    return [*crop, *last]


def build_test_transform(data, crop: int):
    """A function from an image, as a reader yields it or decoded, to the view of evaluation."""
    return lambda image: make_test_view(image, data.resize, crop)


class EvalSource:
    """One pass over this rank's images; every image of the split is on exactly one rank."""

    def __init__(self, samples: int, cfg, rt: Runtime):
        self.data = cfg.data
        self.batch = cfg.eval.batch
        self.classes = cfg.model.num_classes
        mine = shard_for_eval(samples, self.batch, rt.rank, rt.size)
        self.length = len(mine) // self.batch
        self.mine = [sample for sample in mine if sample is not None]
        self.images = Images(cfg.data, "test", samples)
        self.unreadable = UnreadableVideos(self.images, "image")
        self.transform = build_test_transform(cfg.data, cfg.test_crop)
        self.shape = get_clip_shape(cfg.data, cfg.test_crop)

    def dataset(self) -> "EvalSource":
        """The batches, which are this object."""
        return self

    def get_dataset_size(self) -> int:
        return self.length

    def create_tuple_iterator(self, **options) -> Iterator:
        """Batches (N, 1, 3, S, S), labels, valid; N is the same on every rank."""
        count = 0
        for image, label in self.read_batches(**options):
            check_labels(label, self.classes)
            valid = np.arange(self.batch) < len(label)
            for row in find_blank_images(image):
                valid[row] = self.read_again(image, row, self.mine[count * self.batch + row])
            missing = self.batch - len(label)
            image = np.pad(image, [(0, missing), *[(0, 0)] * 3])
            label = np.pad(label.astype(np.int32), (0, missing))
            yield image[:, None], label, valid
            count += 1
        for _ in range(count, self.length):
            labels = np.zeros(self.batch, np.int32)
            yield np.zeros((self.batch, 1, *self.shape), np.uint8), labels, labels.astype(bool)

    def read_again(self, image: np.ndarray, row: int, sample: int) -> bool:
        """Reads a sample again whose row was not decoded; False if it is unreadable."""
        try:
            image[row] = self.transform(self.images.read(sample)[0])
        except VideoError as error:
            self.unreadable.add(sample, str(error))
            return False
        return True

    def read_batches(self, **options) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if not self.mine:
            return
        workers = set_prefetch(self.data, self.batch, self.shape[-1])
        rows = open_reader(self.data, "test", self.mine, workers)
        rows = rows.map([self.transform], ["image"], num_parallel_workers=workers)
        try:
            yield from rows.batch(self.batch).create_tuple_iterator(**options)
        except RuntimeError as error:
            raise ValueError(summarize_error(error)) from None


def check_labels(label: np.ndarray, classes: int) -> None:
    if label.max() >= classes:
        raise ValueError(f"model.num_classes: there is a label {label.max()}, not below {classes}")


def summarize_error(error: Exception) -> str:
    """One line from MindData's long error message: the file, and the reason."""
    if isinstance(error, ValueError):
        return str(error)
    text = str(error)
    file = re.search(r"The corresponding data file is: (.*?)\. ", text)
    reason = (re.search(r"\[ERROR\] (.*)", text) or re.search("(.*)", text))[1]
    return f"data.root: cannot read {file[1] if file else 'an image'}: {reason}"


def set_prefetch(data, batch: int, crop: int) -> int:
    """Sets the prefetch of pipelines that are built from now on; returns their workers."""
    size = batch * int(np.prod(get_clip_shape(data, crop)))
    ds.config.set_prefetch_size(choose_prefetch(data.prefetch, size, MINDDATA_BUFFERED))
    return count_workers(data.workers)


def get_clip_shape(data, size: int) -> tuple[int, int, int]:
    """The shape of one image: (3, size, size)."""
    return 3, size, size
