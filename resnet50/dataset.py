"""Image data of ResNet: readers -> decoder -> random view or test view -> batches.

Training yields (image, target): uint8 (N, 3, crop, crop) and labels int32 (N,), or, with mixup or
cutmix, float32 (N, 3 or 7) (`utils.data.mixing`). Evaluation yields (image, label, valid): uint8
(N, 1, 3, S, S) with S = `cfg.test_crop`, int32 (N,), bool (N,). `valid` is false for unreadable
images and for the padding of the last batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

import numpy as np

from resnet50.config import Config, Data
from resnet50.readers import ChosenImages, ImageRecord, Images, read_images
from resnet50.transforms import make_test_view, make_train_view
from utils.data.classes import choose_fraction, choose_order, count_labels
from utils.data.loader import prefetch_batches
from utils.data.rows import EvalRows, Rows, TrainRows
from utils.data.sampler import TrainSampler
from utils.runtime import Runtime

if TYPE_CHECKING:
    import mindspore.dataset as ds


def read_records(
    cfg: Config, split: str, run: Optional[Path] = None, class_names: Sequence[str] = ()
) -> Images:
    """The images of a split, in training `data.fraction` of them.

    `run` is the folder of the checkpoint, for its class list, `class_names` are its own. Raises
    ValueError if there are no images, or labels out of range.
    """
    images = read_images(
        cfg.data,
        split=split,
        num_classes=cfg.model.num_classes,
        multi_label=cfg.has_several_labels,
        run=run,
        class_names=class_names,
    )
    if split != "train" or cfg.data.fraction == 1:
        return images
    return ChosenImages(
        images, choose_fraction(list_classes(images), cfg.data.fraction, cfg.run.seed)
    )


def list_classes(images: Images) -> np.ndarray:
    """The classes of all images as `utils.data.classes` has them; all are of data set 0."""
    several = isinstance(images.labels[0], tuple)  # they count as one class
    labels = np.zeros(len(images), np.int64) if several else images.labels
    return np.stack([np.zeros(len(images), np.int64), labels], 1)


def build_train_sampler(cfg: Config, records: Images, rt: Runtime) -> TrainSampler:
    order = choose_order(cfg, rt, lambda: list_classes(records))
    if cfg.has_several_labels and cfg.train.class_weights == "balanced":
        order["positives"] = count_labels(records.labels, cfg.model.num_classes)
    if cfg.data.repeats == 1:
        return TrainSampler(len(records), **order)
    return RepeatingSampler(len(records), **order, copies=cfg.data.repeats)


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

    def copy_at(self, position: int) -> int:
        if self.balance != "none":  # an epoch may repeat an image more often
            return super().copy_at(position)
        taken = position % (self.steps_per_epoch * self.batch)  # by this rank in this epoch
        return (taken * self.size + self.rank) % self.copies


class TrainImages(TrainRows):
    """A random view of an image."""

    cfg: Config
    data: Data
    columns = ("image", "target")
    kind = "image"

    def make_row(self, record: ImageRecord, rng: np.random.RandomState) -> tuple:
        view = make_train_view(record.read(), self.data, rng)
        return view, self.make_target(record.label)

    def blank(self) -> tuple:
        image = np.zeros(get_clip_shape(self.data, self.data.crop), np.uint8)
        return image, self.make_target(self.cfg.blank_label)


class EvalImages(EvalRows):
    """The test view of every image, in all splits."""

    cfg: Config
    kind = "image"

    def __init__(self, records: Images, cfg: Config, rt: Runtime, split: str = "test"):
        clip_shape = get_clip_shape(cfg.data, cfg.test_crop)
        super().__init__(records, cfg=cfg, rt=rt, clip_shape=clip_shape)

    def make_views(self, record: ImageRecord, sample: int) -> np.ndarray:
        return make_test_view(record.read(), self.cfg.data.resize, self.cfg.test_crop)[None]


def create_dataset(cfg: Config, rows: Rows, workers: Union[int, str]) -> "ds.GeneratorDataset":
    """The batches of rows in their order, as a MindData pipeline; `workers` is as `data.workers`.

    The shapes are those of the head of this file. One pass over `TrainImages` is all remaining
    epochs of a run.
    """
    import mindspore.dataset as ds  # here: who only reads images does not load MindSpore

    batches = prefetch_batches(rows, cfg.data, workers)
    return ds.GeneratorDataset(batches, list(rows.columns), shuffle=False)


def get_clip_shape(data: Data, size: int) -> tuple[int, int, int]:
    """The shape of one image: (3, size, size)."""
    return 3, size, size
